// What browser stories share: people, logins, steps with deadlines, clicks that are counted, accessibility.
import { createHmac } from 'node:crypto'
import { createRequire } from 'node:module'
import { mkdirSync, readFileSync } from 'node:fs'
import { chromium } from 'playwright-core'

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8')

export const random = () => Math.random().toString(36).slice(2, 8)

export async function stage(called) {
  const need = (name) => process.env[name] ?? (console.error(`${called}: ${name} is not set`), process.exit(2))
  const web = need('BERTH_WEB').replace(/\/$/, '')
  const admin = { email: need('BERTH_ADMIN_EMAIL'), password: need('BERTH_ADMIN_PASSWORD') }
  const shots = process.argv[2]
  if (shots) mkdirSync(shots, { recursive: true })
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] })
  const complaints = []
  const s = { web, admin, shots, browser, complaints, step: 'start', page: null }

  /** A browser of somebody, with the number of clicks that were made in it. */
  s.person = async (options = {}) => {
    const context = await browser.newContext({
      viewport: { width: 1440, height: 900 },
      locale: 'en-GB',
      reducedMotion: 'reduce',
      acceptDownloads: true,
      permissions: ['clipboard-read', 'clipboard-write'],
      ...options,
    })
    context.setDefaultTimeout(120_000)
    const who = { context, page: null, clicks: 0 }
    await context.exposeBinding('berthClicked', () => who.clicks++)
    await context.addInitScript(() => document.addEventListener('pointerdown', (e) => e.isTrusted && window.berthClicked?.(), true))
    who.page = await context.newPage()
    s.watch(who.page)
    return who
  }
  s.watch = (page) => {
    page.on('pageerror', (e) => complaints.push(`script: ${e.stack ?? e.message}`))
    page.on('dialog', (d) => {
      if (d.type() !== 'beforeunload') complaints.push(`a script of somebody's text ran: ${d.message()}`)
      void d.accept()
    })
    page.on('console', (m) => {
      if (m.type() === 'error' && /Content Security Policy|Uncaught/.test(m.text())) complaints.push(m.text())
    })
  }
  s.credentials = async (page, who) => {
    await page.goto(web)
    await page.fill('input[name=username]', who.email)
    await page.fill('input[name=password]', who.password)
    await page.getByRole('button', { name: 'Log in', exact: true }).click()
  }
  s.login = async (page, who) => {
    await s.credentials(page, who)
    await page.getByRole('heading', { name: /^Hello/ }).waitFor()
  }
  s.at = async (name, page, work) => {
    s.step = name
    s.page = page
    const began = Date.now()
    await work()
    if (shots) await page.screenshot({ path: `${shots}/${name}.png` })
    console.log(`${called}: ${name} (${Date.now() - began} ms)`)
  }
  /** Fails for what hinders people: findings of axe that are serious or critical. */
  s.accessible = async (page, name) => {
    await page.evaluate(axe)
    const found = await page.evaluate(async () => {
      const r = await window.axe.run(document, { resultTypes: ['violations'] })
      return r.violations
        .filter((v) => v.impact === 'serious' || v.impact === 'critical')
        .map(
          (v) =>
            `${v.id}: ${v.help}\n${v.nodes
              .slice(0, 4)
              .map((n) => `      ${n.target.join(' ')}: ${n.html.slice(0, 160)}`)
              .join('\n')}`,
        )
    })
    if (found.length) s.findings.push(`${name}:\n    ${found.join('\n    ')}`)
  }
  s.findings = []
  s.end = async (err) => {
    if (!err && complaints.length) err = new Error(`the browser complained:\n${complaints.join('\n')}`)
    if (!err && s.findings.length) err = new Error(`axe found:\n${s.findings.join('\n')}`)
    if (err) {
      if (shots && s.page) await s.page.screenshot({ path: `${shots}/failed.png` }).catch(() => {})
      const seen = await s.page
        ?.evaluate(() => `${location.href}: ${document.body.innerText.replaceAll(/\s+/g, ' ')}`)
        .catch(() => 'nothing')
      console.error(`${called}: the page showed ${seen?.slice(0, 2000)}`)
      console.error(`${called}: step ${s.step} failed: ${err.message}\n${complaints.join('\n')}\n${s.findings.join('\n')}`)
      process.exitCode = 1
    } else console.log(`${called}: well`)
    await browser.close()
  }
  return s
}

/**
 * Chooses the image of a new session by its name. Never the first one that is offered: others use the same container engine, and what they
 * used last comes first.
 */
export async function chooseImage(page, name) {
  await page
    .getByRole('radiogroup', { name: 'Image' })
    .getByRole('radio', { name: new RegExp(`^(Py )?${name}\\b`) })
    .first()
    .click()
}

/** The code that an authenticator app shows for a key. */
export function codeOf(key) {
  const letters = 'ABCDEFGHIJKLMNOPQRSTUVWXYZ234567'
  const bits = [...key.replace(/=+$/, '')].map((c) => letters.indexOf(c).toString(2).padStart(5, '0')).join('')
  const turn = Buffer.alloc(8)
  turn.writeBigUInt64BE(BigInt(Math.floor(Date.now() / 30_000)))
  const mac = createHmac('sha1', Buffer.from(bits.match(/.{8}/g).map((b) => parseInt(b, 2))))
    .update(turn)
    .digest()
  const from = mac[19] & 15
  return String((mac.readUInt32BE(from) & 0x7fffffff) % 1_000_000).padStart(6, '0')
}
