// How fast the console is, in a browser against a running cluster: `bench` runs it (BenchmarkConsole) and prints the figures. Times are in
// milliseconds. The list of 100,000 sessions is made on its way to the browser; everything else is as it is.
import { random, stage } from './lib.mjs'

const s = await stage('speed')
const rounds = 7
const many = 100_000
const median = (list) => [...list].sort((a, b) => a - b)[Math.floor(list.length / 2)]
const say = (name, value) => console.log(`figure ${name} ${Math.round(value * 10) / 10}`)

/** In the page: clicks a link of the navigation and waits until the other page has been drawn. */
async function goes(to) {
  const frame = () => new Promise((done) => requestAnimationFrame(() => done(performance.now())))
  const title = () => document.querySelector('main h1')?.textContent
  const [link, from] = [document.querySelector(`nav a.item[href="${to}"]`), title()]
  const began = performance.now()
  link.click()
  while (location.pathname !== to || !title() || title() === from)
    if ((await frame()) - began > 10_000) throw new Error(`${to} is not drawn`)
  return (await frame()) - began
}

/** In the page: scrolls a table for some seconds, a screen in ten frames, and tells how long frames took. */
async function scrolls(seconds) {
  const box = document.querySelector('.dtable .scroll')
  const frame = () => new Promise(requestAnimationFrame)
  const took = []
  let last = await frame()
  const end = last + seconds * 1000
  while (last < end) {
    box.scrollTop += box.clientHeight / 10
    const now = await frame()
    took.push(now - last)
    last = now
  }
  return took
}

/** In the page: starts a session, and tells how long after that it runs in the list. */
async function starts(name) {
  const send = async (method, path, body) => {
    const answer = await fetch(`/func${path}`, {
      method,
      headers: { 'Content-Type': 'application/json', 'X-BackendAI-Version': 'v8.20240915' },
      body: body && JSON.stringify(body),
    })
    if (!answer.ok) throw new Error(await answer.text())
    return answer.json()
  }
  const shown = new Promise((done) => {
    const look = () => {
      const row = [...document.querySelectorAll('.rows .tr')].find((r) => r.textContent.includes(name))
      if (row?.textContent.includes('Running')) done(Date.now())
    }
    new MutationObserver(look).observe(document.body, { subtree: true, childList: true, characterData: true })
  })
  await send('POST', '/session', { image: 'berth/python:3.11', clientSessionToken: name, config: { resources: { cpu: '1', mem: '128m' } } })
  const at = await shown
  const query = 'query ($f: String) { compute_session_list(limit: 1, offset: 0, filter: $f) { items { status status_changed } } }'
  const { compute_session_list: list } = (await send('POST', '/admin/gql', { query, variables: { f: `name == "${name}"` } })).data ?? {}
  const { status, status_changed: changed } = list.items[0]
  if (status !== 'RUNNING') throw new Error(`it is ${status}`)
  await send('DELETE', `/session/${name}?forced=true`)
  return at - Date.parse(changed)
}

try {
  const first = []
  for (let i = 0; i < rounds; i++) {
    const { context, page } = await s.person()
    await page.goto(s.web)
    await page.locator('input[name=username]').waitFor()
    await page.waitForFunction(() => performance.getEntriesByName('first-contentful-paint').length > 0)
    first.push(await page.evaluate(() => performance.getEntriesByName('first-contentful-paint')[0].startTime))
    await context.close()
  }
  say('first-paint', median(first))

  const { page } = await s.person()
  let streams = 0
  page.on('request', (r) => {
    if (r.resourceType() === 'eventsource') streams++
  })
  await s.login(page, s.admin)
  const places = ['/sessions', '/data', '/images', '/templates', '/admin/cluster', '/admin/users', '/admin/audit', '/']
  const fresh = []
  const again = []
  for (let i = 0; i < rounds; i++) for (const to of places) (i === 0 ? fresh : again).push(await page.evaluate(goes, to))
  say('route-first', median(fresh))
  say('route', median(again))
  say('route-longest', Math.max(...again))

  // From the time that the cluster writes down for it to the change of the page, by the clock of this machine.
  const seen = []
  for (let i = 0; i < rounds; i++) {
    const name = `speed-${random()}`
    await page.goto(`${s.web}/sessions`)
    await page.getByRole('heading', { name: 'Sessions', exact: true }).waitFor()
    seen.push(await page.evaluate(starts, name))
  }
  say('status-change', median(seen))
  say('status-change-longest', Math.max(...seen))

  const row = (i) => ({
    id: `00000000-0000-4000-8000-${String(i).padStart(12, '0')}`,
    name: `row-${i}`,
    type: 'interactive',
    image: 'berth/python:3.11',
    architecture: 'x86_64',
    status: 'TERMINATED',
    status_info: 'user-requested',
    status_changed: null,
    result: 'UNDEFINED',
    user_email: 'somebody@example.org',
    group_name: 'default',
    scaling_group: 'default',
    created_at: '2026-01-01T10:00:00Z',
    terminated_at: '2026-01-01T11:00:00Z',
    startup_command: null,
    occupying_slots: '{"cpu":"1"}',
    requested_slots: '{}',
    service_ports: '[]',
    explanation: null,
  })
  await page.route('**/func/**', async (route) => {
    const body = route.request().method() === 'POST' ? route.request().postDataJSON() : null
    if (!body?.query?.includes(' compute_session_list')) return route.fallback()
    const { l = 100, o = 0 } = body.variables ?? {}
    const items = Array.from({ length: Math.min(l, many - o) }, (_, i) => row(o + i))
    await route.fulfill({ json: { data: { compute_session_list: { items, total_count: many } } } })
  })
  streams = 0
  await page.goto(`${s.web}/sessions?status=all`)
  await page.getByText('100,000 in all').waitFor()
  await page.locator('.rows').getByText('row-0', { exact: true }).waitFor()
  const frames = (await page.evaluate(scrolls, 5)).slice(5)
  say('frames-a-second', (1000 * frames.length) / frames.reduce((a, b) => a + b, 0))
  say('frames-late', (100 * frames.filter((f) => f > 25).length) / frames.length)
  say('streams', streams)
  await s.end()
} catch (err) {
  await s.end(err)
}
