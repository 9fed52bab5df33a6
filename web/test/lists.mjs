// Every list of the console with nothing, one, twenty and a hundred thousand objects. The answers of the cluster are multiplied on their way
// to the browser: the first object stands for all others. Only rows in view may be drawn, only pages in view may be asked for, and the last
// object has to be reached.
import { random, stage } from './lib.mjs'

const s = await stage('lists')
const many = 100_000
const counts = [0, 1, 20, many]
const uuid = (i) => `00000000-0000-4000-8000-${String(i).padStart(12, '0')}`
const nameOf = (i) => `row-${i}`

/** The object at place i of a list. */
function copy(item, i, named) {
  const out = { ...item }
  for (const k of ['id', 'row_id', 'uuid', 'access_key']) if (k in out) out[k] = k === 'access_key' ? `AKROW${i}` : uuid(i)
  out[named] = named === 'email' ? `${nameOf(i)}@example.org` : nameOf(i)
  if ('humanized_name' in out) out.humanized_name = out.name
  return out
}

// Where each list is, the field of GraphQL that it reads, and what its rows are called by.
const lists = [
  { at: '/admin/users', field: 'user_list', named: 'email' },
  { at: '/admin/keypairs', field: 'keypair_list', named: 'user_id' },
  { at: '/admin/projects', field: 'group_nodes', named: 'name' },
  { at: '/admin/projects?tab=domains', field: 'domain_list', named: 'name' },
  { at: '/images', field: 'image_nodes', named: 'name' },
  { at: '/admin/policies', field: 'keypair_resource_policy_list', named: 'name' },
  { at: '/admin/policies?tab=user', field: 'user_resource_policy_list', named: 'name' },
  { at: '/admin/policies?tab=project', field: 'project_resource_policy_list', named: 'name' },
  { at: '/admin/offers', field: 'resource_presets', named: 'name' },
  { at: '/admin/offers?tab=storages', field: 'storage_volume_list', named: 'id' },
  { at: '/sessions?status=all', field: 'compute_session_list', named: 'name' },
  { at: '/data', path: '/folders', named: 'name' },
]

// A cluster may have no session.
const example = {
  compute_session_list: {
    id: '',
    name: '',
    type: 'interactive',
    image: 'berth/python:3.11',
    architecture: 'x86_64',
    status: 'RUNNING',
    status_info: '',
    status_changed: null,
    result: 'UNDEFINED',
    user_email: 'somebody@example.org',
    group_name: 'default',
    scaling_group: 'default',
    created_at: '2026-01-01T10:00:00Z',
    terminated_at: null,
    startup_command: null,
    occupying_slots: '{"cpu":"1"}',
    requested_slots: '{}',
    service_ports: '[]',
    explanation: null,
  },
}

const { page } = await s.person()
let wanted = null
const asked = new Set()

/** Answers the list that is looked at with n objects; all other requests pass. */
async function multiply(route) {
  const { field, path, named, n } = wanted ?? {}
  const request = route.request()
  const body = request.method() === 'POST' ? request.postDataJSON() : null
  const mine = path ? request.method() === 'GET' && new URL(request.url()).pathname === `/func${path}` : body?.query?.includes(` ${field}`)
  if (!mine) return route.fallback()
  const answer = await (await route.fetch()).json()
  if (path) return route.fulfill({ json: Array.from({ length: n }, (_, i) => copy(answer[0], i, named)) })
  const list = answer.data[field]
  const v = body?.variables ?? {}
  // Other parts of a page read the same lists in small pieces, pickers in pieces of twenty.
  const size = v.l ?? v.limit ?? 100
  if (wanted.picked ? size !== 20 : size < 60) return route.fulfill({ json: answer })
  const limit = v.l ?? v.limit ?? Infinity
  const offset = v.o ?? v.offset ?? 0
  asked.add(offset)
  // What a picker searches for.
  const q = wanted.picked ? /ilike "%(.*?)%"/.exec(v.f ?? '')?.[1] : undefined
  const all = q ? Array.from({ length: n }, (_, i) => i).filter((i) => nameOf(i).includes(q)) : null
  const total = all ? all.length : n
  const rows = Math.max(0, Math.min(limit, total - offset))
  const first = list.items?.[0] ?? list.edges?.[0]?.node ?? list[0] ?? example[field]
  if (!first && offset === 0 && !wanted.first) throw new Error(`the cluster has nothing of ${field}`)
  if (first) wanted.first ??= first
  const items = Array.from({ length: rows }, (_, i) => copy(wanted.first, all ? all[offset + i] : offset + i, named))
  if (list.items) Object.assign(list, { items, total_count: total })
  else if (list.edges) Object.assign(list, { edges: items.map((node) => ({ node, cursor: '' })), count: total })
  else answer.data[field] = items
  await route.fulfill({ json: answer })
}

try {
  await s.login(page, s.admin)
  await page.evaluate(async (name) => {
    const send = (path, body) =>
      fetch(`/func${path}`, {
        method: 'POST',
        headers: { 'Content-Type': 'application/json', 'X-BackendAI-Version': 'v8.20240915' },
        body: JSON.stringify(body),
      })
    if (!(await send('/folders', { name })).ok) throw new Error('no folder was made')
  }, `lists-${random()}`)
  await page.route('**/func/**', (route) => multiply(route).catch((err) => s.complaints.push(err.message)))
  for (const list of lists) {
    for (const n of counts) {
      await s.at(`${(list.field ?? 'folders').replaceAll('_', '-')}-${n}`, page, async () => {
        wanted = { ...list, n, first: wanted?.field === list.field ? wanted?.first : undefined }
        asked.clear()
        await page.goto(s.web + list.at)
        if (n === 0) {
          await page.locator('.empty, .tour').first().waitFor()
          if (!(await page.locator('.empty .cli').count())) throw new Error('the empty list does not teach the command line')
          return
        }
        await page.getByText(`${n.toLocaleString('en-US')} in all`).waitFor()
        const text = (i) => page.locator('.rows').getByText(new RegExp(`row-${i}(?!\\d)`))
        await text(0).first().waitFor()
        await page.evaluate(() => (document.querySelector('.dtable .scroll').scrollTop = 1e9))
        await text(n - 1)
          .first()
          .waitFor()
        const drawn = await page.locator('.rows .tr').count()
        if (drawn > 120) throw new Error(`${drawn} rows of ${n} are drawn`)
        if (asked.size > 6) throw new Error(`${asked.size} pages were asked for`)
      })
    }
  }
  await s.at('image-picker', page, async () => {
    wanted = { field: 'image_nodes', named: 'name', n: many, first: undefined }
    await page.goto(`${s.web}/sessions/new`)
    const choices = page.getByRole('radiogroup', { name: 'Image' }).getByRole('radio')
    await choices.first().waitFor()
    if ((await choices.count()) > 7) throw new Error('the picker draws all images')
    await page.getByRole('button', { name: /^Show all/ }).click()
    await page.getByText('60 of 100,000 images').waitFor()
    if ((await choices.count()) > 61) throw new Error('the picker draws more than it asked for')
  })
  // Each picker of a list that grows: twenty are read, the next twenty when the end is near, and the search is the server's.
  const pickers = [
    { at: '/admin/users', make: 'New user', label: 'Domain', field: 'domain_list', named: 'name' },
    { at: '/admin/users', make: 'New user', label: 'Policy', field: 'user_resource_policy_list', named: 'name' },
    { at: '/admin/users', make: 'New user', label: 'Projects', field: 'group_nodes', named: 'name' },
    { at: '/admin/projects', make: 'New project', label: 'Domain', field: 'domain_list', named: 'name' },
    { at: '/admin/keypairs', make: 'New keypair', label: 'Email', field: 'user_list', named: 'email' },
    { at: '/admin/keypairs', make: 'New keypair', label: 'Policy', field: 'keypair_resource_policy_list', named: 'name' },
    { at: '/admin/cluster?tab=groups', make: 'New resource group', label: 'For the domain', field: 'domain_list', named: 'name' },
    { at: '/admin/audit', label: 'Domain', field: 'domain_list', named: 'name' },
  ]
  for (const p of pickers) {
    const called = `picker-${p.at.replace(/\W+/g, '-')}-${p.label.toLowerCase().replaceAll(' ', '-')}`
    await s.at(called.replace('--', '-'), page, async () => {
      wanted = { ...p, n: 10_000, picked: true, first: undefined }
      asked.clear()
      await page.goto(s.web + p.at)
      if (p.make) await page.getByRole('button', { name: p.make, exact: true }).click()
      const field = page.getByRole('combobox', { name: p.label, exact: true })
      await field.waitFor()
      if (asked.size) throw new Error('it reads before anybody opened it')
      await field.click()
      const options = page.getByRole('option')
      await page.getByRole('option', { name: '9,980 more' }).waitFor()
      if ((await options.count()) !== 21) throw new Error(`${await options.count()} lines are drawn`)
      await s.accessible(page, `${called}, open`)
      await page.keyboard.press('ArrowDown')
      await page.keyboard.press('ArrowUp')
      await options.filter({ hasText: 'row-25' }).waitFor()
      if ([...asked].some((o) => o > 40)) throw new Error(`it read on to ${Math.max(...asked)}`)
      await page.keyboard.type('row-9876')
      await options.filter({ hasText: 'row-0' }).first().waitFor({ state: 'hidden' })
      await options.filter({ hasText: 'row-9876' }).waitFor()
      if ((await options.count()) !== 1) throw new Error(`the search shows ${await options.count()} lines`)
      await page.locator('[data-combobox-selected]').filter({ hasText: 'row-9876' }).waitFor()
      await page.keyboard.press('Enter')
      if (p.label === 'Projects') await page.locator('.mantine-Pill-root').filter({ hasText: 'row-9876' }).waitFor()
      else if (!(await field.inputValue()).includes('row-9876')) throw new Error(`the field shows ${await field.inputValue()}`)
    })
  }
  await s.end()
} catch (err) {
  await s.end(err)
}
