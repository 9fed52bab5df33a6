// Drives one Chromium for a Go test: a request is a JSON line on standard input, its reply a JSON line on standard output, in
// the order of the requests. The end of standard input ends everything.
//
//   {"op": "open", "page": "p", "url": "…"}   -> {"value": {"status": 200, "url": "…"}}  or {"error": "…"}
//
// A page lives in a context ("context", default the page's own name): contexts share no cookies.
import { createInterface } from "node:readline"
import { createRequire } from "node:module"

const { chromium } = createRequire(process.env.BERTH_BROWSER_MODULES + "/")("playwright-core")
const browser = await chromium.launch({
  executablePath: process.env.BERTH_CHROMIUM,
  args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
})
const contexts = new Map(), pages = new Map()
const keep = 200 // console lines and failed requests of a page that are kept

async function pageOf(request) {
  const name = request.page ?? "page"
  if (pages.has(name)) return pages.get(name)
  const owner = request.context ?? name
  if (!contexts.has(owner)) contexts.set(owner, await browser.newContext({ ignoreHTTPSErrors: true, viewport: { width: 1200, height: 800 } }))
  const page = await contexts.get(owner).newPage()
  const entry = { page, log: [] }
  const note = line => { if (entry.log.length < keep) entry.log.push(line) }
  page.on("console", m => note(m.type() + ": " + m.text()))
  page.on("pageerror", e => note("error: " + e.message))
  page.on("requestfailed", r => note("failed: " + r.url() + " " + r.failure()?.errorText))
  page.on("dialog", d => d.accept().catch(() => {}))
  pages.set(name, entry)
  return entry
}

const operations = {
  async open({ page }, { url, wait }) {
    const r = await page.goto(url, { waitUntil: wait ?? "load" })
    return { status: r?.status() ?? 0, url: page.url(), headers: r ? await r.allHeaders() : {} }
  },
  async reload({ page }, { wait }) {
    const r = await page.reload({ waitUntil: wait ?? "load" })
    return { status: r?.status() ?? 0, url: page.url() }
  },
  eval: ({ page }, { script }) => page.evaluate(script),
  // until waits for a script to give something true, and returns that. It asks from outside the page: what asks from inside may
  // not evaluate texts where the page's Content-Security-Policy forbids that.
  until: async ({ page }, { script, timeout }) => {
    const deadline = Date.now() + timeout;
    for (let last = ""; ; await new Promise((resolve) => setTimeout(resolve, 50))) {
      try {
        const value = await page.evaluate(script);
        if (value) return value;
        last = "";
      } catch (e) {
        last = e.message; // a page that is being left, or is not complete yet
      }
      if (Date.now() > deadline) throw new Error(`does not come true within ${timeout} ms${last && ": " + last}`);
    }
  },
  visible: ({ page }, { selector }) => page.locator(selector).first().waitFor({ state: "visible" }),
  click: ({ page }, { selector }) => page.locator(selector).first().click(),
  fill: ({ page }, { selector, text }) => page.locator(selector).first().fill(text),
  type: ({ page }, { text }) => page.keyboard.type(text),
  text: ({ page }, { selector }) => page.locator(selector).first().innerText(),
  content: ({ page }) => page.content(),
  url: ({ page }) => page.url(),
  log: entry => entry.log,
  cookies: ({ page }) => page.context().cookies(),
  screenshot: ({ page }, { path }) => page.screenshot({ path }).then(() => path),
  async close(entry, { page }) {
    await entry.page.close()
    pages.delete(page ?? "page")
  },
}

for await (const line of createInterface({ input: process.stdin })) {
  let reply
  try {
    const request = JSON.parse(line)
    const operation = operations[request.op]
    if (!operation) throw new Error("no operation " + request.op)
    const entry = await pageOf(request)
    entry.page.setDefaultTimeout(request.timeout ?? 120000)
    reply = { value: (await operation(entry, request)) ?? null }
  } catch (e) {
    reply = { error: String(e.message ?? e) }
  }
  process.stdout.write(JSON.stringify(reply) + "\n")
}
await browser.close()
