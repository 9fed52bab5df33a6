// The administrator's story in a browser; see README.md. Every save of the pages for administrators is driven, with hostile names in the
// fields. Each step has a deadline, and what the browser complains about fails the run.
import { mkdirSync, readFileSync } from 'node:fs'
import { chromium } from 'playwright-core'
import { chooseImage } from './lib.mjs'

const need = (name) => process.env[name] ?? (console.error(`admin: ${name} is not set`), process.exit(2))
const web = need('BERTH_WEB').replace(/\/$/, '')
const admin = { email: need('BERTH_ADMIN_EMAIL'), password: need('BERTH_ADMIN_PASSWORD') }
const shots = process.argv[2]
if (shots) mkdirSync(shots, { recursive: true })

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] })
const complaints = []
const tag = Math.random().toString(36).slice(2, 8)
const hostile = '<img src=x onerror=alert(1)>'

async function person() {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, locale: 'en-GB', acceptDownloads: true })
  context.setDefaultTimeout(120_000)
  const page = await context.newPage()
  page.on('pageerror', (e) => complaints.push(`script: ${e.stack ?? e.message}`))
  page.on('dialog', (d) => {
    if (d.type() !== 'beforeunload') complaints.push(`a script of somebody's text ran: ${d.message()}`)
    void d.accept()
  })
  page.on('console', (m) => {
    if (m.type() === 'error' && /Content Security Policy|Uncaught/.test(m.text())) complaints.push(m.text())
  })
  return { context, page }
}

async function login(page, who) {
  await page.goto(web)
  await page.fill('input[name=username]', who.email)
  await page.fill('input[name=password]', who.password)
  await page.getByRole('button', { name: 'Log in', exact: true }).click()
  await page.getByRole('heading', { name: /^Hello/ }).waitFor()
}

let step = 'start'
async function at(name, page, work) {
  step = name
  const began = Date.now()
  await work()
  if (shots) await page.screenshot({ path: `${shots}/${name}.png` })
  console.log(`admin: ${name} (${Date.now() - began} ms)`)
}

async function saved(page, button) {
  const came = page.waitForEvent('download')
  await button.click()
  return readFileSync(await (await came).path(), 'utf8')
}

function same(is, want, what) {
  if (is !== want) throw new Error(`${what}: ${JSON.stringify(is)} instead of ${JSON.stringify(want)}`)
}

/** Asks the public API as the person who is logged in: what a page says is compared with what the cluster says. */
const ask = (page, path) =>
  page.evaluate(async (p) => (await fetch('/func' + p, { headers: { 'X-BackendAI-Version': 'v8.20240915' } })).json(), path)
const graph = (page, query) =>
  page.evaluate(
    async (q) =>
      (
        await (
          await fetch('/func/admin/gql', {
            method: 'POST',
            headers: { 'Content-Type': 'application/json', 'X-BackendAI-Version': 'v8.20240915' },
            body: JSON.stringify({ query: q }),
          })
        ).json()
      ).data,
    query,
  )

const { page } = await person()
const who = (i) => `bulk-${tag}-${i}@example.org`
const group = `rg-${tag}`
const preset = `preset-${tag}`
const policy = `policy-${tag}`
let passwords = ''
try {
  await login(page, admin)

  await at('import-refused', page, async () => {
    await page.goto(`${web}/admin/users`)
    await page.getByRole('button', { name: 'Import users' }).click()
    await page.getByLabel('Table (CSV)').fill('email,password\nx@example.org,secret')
    await page.getByRole('button', { name: 'Show what would change' }).click()
    await page.getByText('passwords do not belong into tables').waitFor()
  })
  await at('import-diff', page, async () => {
    const rows = Array.from({ length: 50 }, (_, i) => `${who(i)},${i ? `Bulk ${i}` : hostile},default`)
    await page.getByLabel('Table (CSV)').fill(['email,full_name,projects', ...rows].join('\n'))
    await page.getByRole('button', { name: 'Show what would change' }).click()
    await page.getByRole('button', { name: /^Apply \d+ changes$/ }).waitFor()
    await page
      .getByRole('cell', { name: who(0), exact: true })
      .first()
      .waitFor()
    same(
      (await graph(page, `{ user_list(limit: 1, offset: 0, filter: "email ilike \\"bulk-${tag}-%\\"") { total_count } }`)).user_list
        .total_count,
      0,
      'users before it is applied',
    )
  })
  await at('import-stale', page, async () => {
    await page.getByLabel('Table (CSV)').press('End')
    await page.getByLabel('Table (CSV)').pressSequentially(' ')
    await page.getByText('The table has changed').waitFor()
    if (await page.getByRole('button', { name: /^Apply/ }).isEnabled()) throw new Error('what nobody has seen can be applied')
    await page.getByRole('button', { name: 'Show what would change' }).click()
    await page.getByText('The table has changed').waitFor({ state: 'hidden' })
  })
  await at('import-applied', page, async () => {
    await page.getByRole('button', { name: /^Apply/ }).click()
    await page
      .getByRole('status')
      .getByText(/changes applied/)
      .waitFor({ timeout: 120_000 })
    if (await page.getByText(/\d+ failed/).count()) throw new Error('some changes failed')
    passwords = await saved(page, page.getByRole('button', { name: 'Download 50 passwords' }))
    same(passwords.trim().split('\r\n').length, 51, 'lines of the passwords')
    same(
      (await graph(page, `{ user_list(limit: 1, offset: 0, filter: "email ilike \\"bulk-${tag}-%\\"") { total_count } }`)).user_list
        .total_count,
      50,
      'users',
    )
  })
  await at('import-again', page, async () => {
    await page.getByRole('button', { name: 'Import another table' }).click()
    const table = await saved(page, page.getByRole('button', { name: 'Download the users as CSV' }))
    if (!table.includes(who(49))) throw new Error('the export lacks a user')
    await page.locator('input[type=file]').setInputFiles({ name: 'users.csv', mimeType: 'text/csv', buffer: Buffer.from(table) })
    await page.getByText('Nothing would change').waitFor()
    await page.getByLabel('Table (CSV)').fill(`email,full_name,status\n${who(1)},Renamed,inactive`)
    await page.getByRole('button', { name: 'Show what would change' }).click()
    await page.getByRole('button', { name: /^Apply/ }).click()
    await page.getByText(/^\d+ changes? applied$/).waitFor()
    same((await graph(page, `{ user(email: "${who(1)}") { full_name status } }`)).user.full_name, 'Renamed', 'full name')
  })
  await at('new-user-logs-in', page, async () => {
    const line = passwords.split('\r\n').find((l) => l.startsWith(who(2)))
    const other = await person()
    await login(other.page, { email: who(2), password: line.split(',')[1] })
    if (await other.page.getByRole('link', { name: 'Policies', exact: true }).count()) throw new Error('a user sees administration')
    await other.page.goto(`${web}/admin/users/import`)
    await other.page.getByLabel('Table (CSV)').fill(`email,role\n${who(2)},superadmin`)
    await other.page.getByRole('button', { name: 'Show what would change' }).click()
    await other.page.getByRole('alert').waitFor()
    await other.context.close()
  })
  await at('home-of-a-domain', page, async () => {
    await page.goto(`${web}/admin/users/import`)
    await page.getByLabel('Table (CSV)').fill(`email,role\n${who(5)},admin`)
    await page.getByRole('button', { name: 'Show what would change' }).click()
    await page.getByRole('button', { name: /^Apply/ }).click()
    await page.getByText(/^\d+ changes? applied$/).waitFor()
    const line = passwords.split('\r\n').find((l) => l.startsWith(who(5)))
    const chief = await person()
    await login(chief.page, { email: who(5), password: line.split(',')[1] })
    await chief.page.getByRole('heading', { name: 'Domain default' }).waitFor()
    await chief.page.getByRole('heading', { name: 'Waiting sessions' }).waitFor()
    if (await chief.page.getByRole('link', { name: 'Cluster', exact: true }).count()) throw new Error('a domain sees the cluster')
    if (await chief.page.getByRole('alert').count()) throw new Error('something of the home of a domain cannot be read')
    if (shots) await chief.page.screenshot({ path: `${shots}/home-of-a-domain.png` })
    await chief.context.close()
  })
  await at('keypair', page, async () => {
    await page.goto(`${web}/admin/keypairs`)
    await page.getByRole('button', { name: 'New keypair' }).click()
    await page.getByRole('dialog').getByRole('combobox', { name: 'Email' }).click()
    await page.keyboard.type(who(3))
    await page.getByRole('option', { name: who(3) }).click()
    await page.getByRole('button', { name: 'Create keypair' }).click()
    await page.getByText('The secret key is shown once').waitFor()
    const key = await page.getByRole('dialog').locator('code').first().innerText()
    await page.getByRole('dialog').getByRole('button', { name: 'Close' }).last().click()
    await page.getByLabel('Access key or email').fill(key)
    await page.getByRole('row').filter({ hasText: key }).click()
    await page.getByRole('switch', { name: 'Requests with this key are answered' }).click()
    await page.getByRole('button', { name: 'Save changes' }).click()
    await page.getByRole('dialog').waitFor({ state: 'hidden' })
    same((await graph(page, `{ keypair(access_key: "${key}") { is_active } }`)).keypair.is_active, false, 'the key holds')
    await page.getByRole('button', { name: 'Inactive', exact: true }).click()
    await page.getByRole('row').filter({ hasText: key }).click()
    await page.getByRole('button', { name: 'Delete keypair' }).click()
    await page.getByRole('dialog', { name: 'Delete keypair' }).getByRole('button', { name: 'Delete keypair' }).click()
    await page.getByText('No keypair matches').waitFor()
  })
  await at('lower-a-policy', page, async () => {
    await page.goto(`${web}/admin/policies`)
    await page.getByRole('row').filter({ hasText: 'default' }).click()
    const preview = page.getByRole('dialog').getByRole('row', { name: /^Sessions/ })
    await preview.waitFor()
    const sessions = page.getByRole('dialog').getByLabel('Sessions', { exact: true })
    const lower = String((Number(await sessions.inputValue()) || 30) - 1)
    await sessions.fill(lower)
    await page.getByRole('dialog').locator('tr.changed').filter({ hasText: 'Sessions' }).waitFor()
    same(await preview.getByRole('cell').nth(1).innerText(), lower, 'what the policy comes to')
    const user = page.getByRole('dialog').getByLabel('For this user')
    await user.click()
    await user.fill(who(4))
    await page
      .getByRole('option')
      .filter({ hasText: who(4) })
      .click()
    await preview.waitFor()
    same(await preview.getByRole('cell').nth(1).innerText(), lower, 'what the policy comes to for another')
    same(await page.getByRole('dialog').getByLabel('In the project').inputValue(), 'default', 'the project of the other')
    if (shots) await page.screenshot({ path: `${shots}/policy-preview.png` })
    await page.getByRole('button', { name: 'Save changes' }).click()
    await page.getByRole('dialog').waitFor({ state: 'hidden' })
    const limits = (await ask(page, `/resource/limits?user=${encodeURIComponent(who(4))}&group=default`)).limits
    same(limits.find((l) => l.what === 'live sessions').levels.find((l) => l.policy === 'default').limit, lower, 'the limit')
  })
  for (const kind of ['user', 'project']) {
    await at(`${kind}-policy`, page, async () => {
      await page.goto(`${web}/admin/policies?tab=${kind}`)
      await page.getByRole('button', { name: 'New policy' }).click()
      await page.getByRole('dialog').getByLabel('Name').fill(`${policy}-${kind}`)
      await page.getByRole('dialog').getByLabel('Folders').fill('5')
      await page.getByRole('button', { name: 'Create policy' }).click()
      await page
        .getByRole('row')
        .filter({ hasText: `${policy}-${kind}` })
        .click()
      await page.getByRole('dialog').getByLabel('Storage (GiB)').fill('2')
      await page.getByRole('button', { name: 'Save changes' }).click()
      await page
        .getByRole('row')
        .filter({ hasText: `${policy}-${kind}` })
        .filter({ hasText: '2 GiB' })
        .click()
      await page.getByRole('dialog').getByLabel('Folders').fill('')
      await page.getByRole('button', { name: 'Save changes' }).click()
      await page
        .getByRole('row')
        .filter({ hasText: `${policy}-${kind}` })
        .filter({ hasText: 'no limit' })
        .click()
      await page.getByRole('button', { name: 'Delete policy' }).click()
      await page.getByRole('dialog', { name: 'Delete policy' }).getByRole('button', { name: 'Delete policy' }).click()
      await page
        .getByRole('row')
        .filter({ hasText: `${policy}-${kind}` })
        .waitFor({ state: 'hidden' })
    })
  }
  await at('preset', page, async () => {
    await page.goto(`${web}/admin/offers`)
    await page.getByRole('button', { name: 'New preset' }).click()
    const dialog = page.getByRole('dialog')
    await dialog.getByLabel('Name').fill(preset)
    await dialog.getByLabel(/^CPU/).fill('1')
    await dialog.getByLabel(/^Memory/).fill('2')
    await page.getByRole('button', { name: 'Create preset' }).click()
    await page.getByRole('row').filter({ hasText: preset }).filter({ hasText: '2 GiB' }).click()
    await dialog.getByLabel('Shared memory (GiB)').fill('1')
    await page.getByRole('button', { name: 'Save changes' }).click()
    await page.getByRole('row').filter({ hasText: preset }).filter({ hasText: '1 GiB' }).click()
    await page.getByRole('button', { name: 'Delete preset' }).click()
    await page.getByRole('dialog', { name: 'Delete preset' }).getByRole('button', { name: 'Delete preset' }).click()
    await page.getByRole('row').filter({ hasText: preset }).waitFor({ state: 'hidden' })
    await page.getByRole('tab', { name: 'Storages' }).click()
    await page
      .getByRole('cell', { name: /volume/ })
      .first()
      .waitFor()
    await page.getByRole('tab', { name: 'Registries' }).click()
    await page.getByText('There is no registry').waitFor()
  })
  await at('domain', page, async () => {
    await page.goto(`${web}/admin/projects?tab=domains`)
    await page.getByRole('button', { name: 'New domain' }).click()
    await page.getByRole('dialog').getByLabel('Name').fill(`dom-${tag}`)
    await page.getByRole('dialog').getByLabel('Description').fill(hostile)
    await page.getByRole('dialog').getByLabel('CPU', { exact: true }).fill('7')
    await page.getByRole('button', { name: 'Create domain' }).click()
    await page
      .getByRole('row')
      .filter({ hasText: `dom-${tag}` })
      .filter({ hasText: hostile })
      .click()
    same(await page.getByRole('dialog').getByLabel('CPU', { exact: true }).inputValue(), '7', 'the limit of the domain')
    await page.getByRole('switch').click()
    await page.getByRole('button', { name: 'Save changes' }).click()
    await page
      .getByRole('row')
      .filter({ hasText: `dom-${tag}` })
      .filter({ hasText: 'inactive' })
      .or(
        page
          .getByRole('row')
          .filter({ hasText: `dom-${tag}` })
          .filter({ hasText: 'Inactive' }),
      )
      .waitFor()
  })
  await at('group', page, async () => {
    await page.goto(`${web}/admin/cluster?tab=groups`)
    await page.getByRole('button', { name: 'New resource group' }).click()
    await page.getByRole('dialog').getByLabel('Name').fill(group)
    await page.getByRole('dialog').getByLabel('Description').fill(hostile)
    await page.getByRole('button', { name: 'Create resource group' }).click()
    await page.getByRole('button', { name: `Change: ${group}` }).click()
    await page.getByRole('switch', { name: 'Users may choose it' }).click()
    await page.getByRole('button', { name: 'Save changes' }).click()
    await page.getByRole('dialog').waitFor({ state: 'hidden' })
    same((await graph(page, `{ scaling_group(name: "${group}") { is_public } }`)).scaling_group.is_public, false, 'the group is offered')
  })
  await at('cordon', page, async () => {
    await page.goto(`${web}/admin/cluster`)
    await page.locator('.tile').first().click()
    await page.getByRole('dialog').getByRole('button', { name: 'Cordon agent' }).click()
    await page
      .getByRole('dialog', { name: /^Cordon .*\?$/ })
      .getByRole('button', { name: 'Cordon agent' })
      .click()
    await page.getByText('Nothing is here: it can be switched off.').waitFor()
  })
  const waiting = `waits-${tag}`
  await at('queue', page, async () => {
    await page.goto(`${web}/sessions/new`)
    await chooseImage(page, 'python')
    await page.getByRole('radio', { name: /^small/ }).click()
    await page.fill('input[name=session-name]', waiting)
    await page.getByTestId('start').click()
    await page.getByRole('heading', { name: waiting }).waitFor()
    await page.goto(`${web}/admin/cluster?tab=queue`)
    const row = page.getByRole('row').filter({ hasText: waiting })
    await row
      .getByRole('cell')
      .nth(1)
      .getByText(/\w{4,}/)
      .waitFor()
    await page.getByRole('button', { name: 'default', exact: true }).click()
    await row.waitFor()
    await page.goto(`${web}/admin/cluster?tab=queue&group=${group}`)
    await page.getByText('Nothing waits').waitFor()
    if (await page.getByText(waiting).count()) throw new Error('the queue of another group shows it')
  })
  await at('uncordon', page, async () => {
    await page.goto(`${web}/admin/cluster`)
    await page.locator('.tile').first().click()
    await page.getByRole('dialog').getByRole('button', { name: 'Uncordon agent' }).click()
    await page.getByRole('dialog').getByRole('link', { name: waiting }).waitFor({ timeout: 120_000 })
  })
  await at('drain', page, async () => {
    await page.getByRole('dialog').getByRole('button', { name: 'Drain agent' }).click()
    await page.getByRole('checkbox', { name: /^End 1 session now/ }).check()
    await page.getByRole('dialog', { name: 'Drain agent' }).getByRole('button', { name: 'Drain agent' }).click()
    await page.getByText('Nothing is here: it can be switched off.').waitFor({ timeout: 120_000 })
    await page.getByRole('dialog').getByRole('button', { name: 'Uncordon agent' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Cordon agent' }).waitFor()
  })
  await at('usage', page, async () => {
    await page.goto(`${web}/admin/usage?by=user`)
    await page.getByRole('cell', { name: admin.email }).first().waitFor()
    const csv = await saved(page, page.getByRole('button', { name: 'Download as CSV' }))
    if (!csv.startsWith('user,key,domain_name,cpu_hours,mem_hours') || !csv.includes(admin.email)) throw new Error(`the report is ${csv}`)
  })
  await at('price', page, async () => {
    await page.getByRole('tab', { name: 'Prices' }).click()
    await page.getByRole('button', { name: 'New price' }).click()
    await page.getByRole('dialog').getByLabel('For an hour of one').fill('3600')
    await page.getByRole('button', { name: 'Set price' }).click()
    await page.getByRole('cell', { name: '3600' }).waitFor()
    await page.getByRole('tab', { name: 'Report' }).click()
    await page.getByText(/Cost in all/).waitFor()
    await page.getByRole('tab', { name: 'Prices' }).click()
    await page.getByRole('button', { name: 'Remove price' }).first().click()
    await page.getByRole('dialog').getByRole('button', { name: 'Remove price' }).click()
    await page.getByText('No price is set').waitFor()
  })
  await at('announcement', page, async () => {
    await page.goto(`${web}/admin/settings`)
    await page.getByLabel('Text').fill(`${hostile} ${tag}`)
    const show = page.getByRole('switch', { name: 'Show it' })
    if (!(await show.isChecked())) await show.click()
    await page.getByRole('button', { name: 'Save changes' }).first().click()
    await page.getByText('Everybody sees it now.').waitFor()
    await page.goto(web)
    await page.getByText(`${hostile} ${tag}`).waitFor()
  })
  await at('audit', page, async () => {
    await page.goto(`${web}/admin/audit`)
    await page.getByLabel('Action, object or email').fill('agent')
    await page.getByRole('cell', { name: /agent/ }).first().waitFor()
    await page.getByLabel('Action, object or email').fill('policy')
    await page.getByRole('row').filter({ hasText: admin.email }).first().click()
    await page.getByRole('dialog').getByText('From').waitFor()
  })
  await at('domain-administrator', page, async () => {
    await graph(page, `mutation { modify_user(email: "${who(5)}", props: { role: "admin", need_password_change: false }) { ok msg } }`)
    const line = passwords.split('\r\n').find((l) => l.startsWith(who(5)))
    const other = await person()
    await login(other.page, { email: who(5), password: line.split(',')[1] })
    for (const name of ['Policies', 'Cluster', 'Settings', 'Offers'])
      if (await other.page.getByRole('link', { name, exact: true }).count()) throw new Error(`a domain's administrator is offered ${name}`)
    for (const [path, text] of [
      ['keypairs', who(3)],
      ['usage', 'default'],
      ['users', who(3)],
    ]) {
      await other.page.goto(`${web}/admin/${path}${path === 'usage' ? '' : `?q=${encodeURIComponent(text)}`}`)
      await other.page.getByRole('cell', { name: text }).first().waitFor()
    }
    // What is chosen from is of the domain, and can be read.
    for (const [path, make, fields] of [
      ['users', 'New user', ['Policy', 'Projects']],
      ['keypairs', 'New keypair', ['Email', 'Policy']],
    ]) {
      await other.page.goto(`${web}/admin/${path}`)
      await other.page.getByRole('button', { name: make }).click()
      for (const name of fields) {
        await other.page.getByRole('combobox', { name }).click()
        await other.page.getByRole('option').first().waitFor()
        if (await other.page.getByRole('alert').count()) throw new Error(`${name} cannot be read by a domain's administrator`)
        await other.page.keyboard.press('Escape')
      }
    }
    await other.page.goto(`${web}/admin/policies`)
    await other.page.getByRole('button', { name: 'New policy' }).click()
    await other.page.getByRole('dialog').getByLabel('Name').fill(policy)
    await other.page.getByRole('button', { name: 'Create policy' }).click()
    await other.page.getByRole('dialog').getByRole('alert').waitFor()
    await other.page.goto(`${web}/admin/users/import`)
    await other.page.getByLabel('Table (CSV)').fill(`email,domain\nx-${tag}@example.org,dom-${tag}`)
    await other.page.getByRole('button', { name: 'Show what would change' }).click()
    await other.page.getByRole('alert').waitFor()
    await other.context.close()
  })
  if (shots) {
    for (const [scheme, width] of [
      ['light', 1440],
      ['dark', 1440],
      ['light', 390],
    ]) {
      await page.emulateMedia({ colorScheme: scheme })
      await page.setViewportSize({ width, height: 900 })
      for (const path of [
        'users/import',
        'keypairs',
        'policies',
        'policies?tab=user',
        'offers',
        'offers?tab=registries',
        'usage',
        'cluster?tab=groups',
        'cluster?tab=queue',
      ]) {
        await page.goto(`${web}/admin/${path}`)
        await page.locator('.pagehead').waitFor()
        await page.waitForLoadState('networkidle')
        await page.screenshot({ path: `${shots}/page-${path.replace(/\W/g, '-')}-${scheme}-${width}.png` })
      }
    }
  }
  if (complaints.length) throw new Error(`the browser complained:\n${complaints.join('\n')}`)
  console.log('admin: well')
} catch (err) {
  if (shots) await page.screenshot({ path: `${shots}/failed.png` })
  console.error(`admin: step ${step} failed: ${err.message}\n${complaints.join('\n')}`)
  process.exitCode = 1
} finally {
  await browser.close()
}
