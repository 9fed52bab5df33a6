// More stories of the console in a browser; see README.md. Each has a deadline, and what the browser complains about fails the run.
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { chromium } from 'playwright-core'
import { codeOf } from './lib.mjs'

const need = (name) => process.env[name] ?? (console.error(`stories: ${name} is not set`), process.exit(2))
const web = need('BERTH_WEB').replace(/\/$/, '')
const admin = { email: need('BERTH_ADMIN_EMAIL'), password: need('BERTH_ADMIN_PASSWORD') }
const shots = process.argv[2]
if (shots) mkdirSync(shots, { recursive: true })

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] })
const complaints = []
const random = () => Math.random().toString(36).slice(2, 8)

async function person() {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, locale: 'en-GB', acceptDownloads: true })
  context.setDefaultTimeout(120_000)
  const page = await context.newPage()
  page.on('pageerror', (e) => complaints.push(`script: ${e.stack ?? e.message}`))
  page.on('dialog', (d) => {
    complaints.push(`a script of somebody's text ran: ${d.message()}`)
    void d.dismiss()
  })
  page.on('console', (m) => {
    if (m.type() === 'error' && /Content Security Policy|Uncaught/.test(m.text())) complaints.push(m.text())
  })
  return { context, page }
}

async function credentials(page, who) {
  await page.goto(web)
  await page.fill('input[name=username]', who.email)
  await page.fill('input[name=password]', who.password)
  await page.getByRole('button', { name: 'Log in', exact: true }).click()
}

async function login(page, who) {
  await credentials(page, who)
  await page.getByRole('heading', { name: /^Hello/ }).waitFor()
}

let step = 'start'
async function at(name, page, work) {
  step = name
  const began = Date.now()
  await work()
  if (shots) await page.screenshot({ path: `${shots}/${name}.png` })
  console.log(`stories: ${name} (${Date.now() - began} ms)`)
}

const files = mkdtempSync(join(tmpdir(), 'berth-stories-'))
const tree = join(files, 'tree')
mkdirSync(join(tree, 'sub'), { recursive: true })
writeFileSync(join(tree, 'a.txt'), 'hello a')
writeFileSync(join(tree, '<img src=x onerror=alert(1)>.txt'), 'hostile')
writeFileSync(join(tree, 'empty'), '')
writeFileSync(join(tree, 'sub', 'big.bin'), Buffer.alloc(40 << 20, 7))

const { context, page } = await person()
const folder = `story-${random()}`
const second = { email: `story-${random()}@example.org`, password: '' }
try {
  await login(page, admin)
  await at('folder', page, async () => {
    await page.goto(`${web}/data`)
    await page.getByRole('button', { name: 'New folder' }).first().click()
    await page.fill('input[name=folder-name]', folder)
    await page.getByRole('button', { name: 'Create folder' }).click()
    await page.getByRole('heading', { name: folder }).waitFor()
  })
  await at('upload', page, async () => {
    await page.locator('input[webkitdirectory]').setInputFiles(tree)
    await page.getByText('4 files uploaded').waitFor()
    await page.getByRole('button', { name: 'tree' }).click()
    await page.getByRole('button', { name: 'a.txt', exact: true }).waitFor()
  })
  await at('download', page, async () => {
    const came = page.waitForEvent('download')
    await page.getByRole('row').filter({ hasText: 'a.txt' }).getByRole('checkbox').check()
    await page.getByRole('button', { name: 'Download', exact: true }).click()
    if (readFileSync(await (await came).path(), 'utf8') !== 'hello a') throw new Error('the file is another one')
  })
  await at('rename-and-delete', page, async () => {
    await page.getByRole('button', { name: 'Rename' }).click()
    await page.getByRole('dialog').getByLabel('Name').fill('b.txt')
    await page.getByRole('dialog').getByRole('button', { name: 'Rename' }).click()
    await page.getByRole('row').filter({ hasText: 'b.txt' }).getByRole('checkbox').check()
    await page.getByRole('button', { name: 'Delete 1 entry' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Delete 1 entry' }).click()
    await page.getByRole('row').filter({ hasText: 'b.txt' }).waitFor({ state: 'hidden' })
  })
  await at('user', page, async () => {
    await page.goto(`${web}/admin/users`)
    await page.getByRole('button', { name: 'New user' }).click()
    await page.getByRole('dialog').getByLabel('Email').fill(second.email)
    await page.getByRole('switch', { name: /Has to change/ }).click()
    await page.getByRole('button', { name: 'Create user' }).click()
    await page.getByText('can log in with this password').waitFor()
    second.password = await page.getByRole('dialog').locator('code').innerText()
  })
  await at('share', page, async () => {
    await page.goto(`${web}/data`)
    await page.getByRole('link', { name: folder }).click()
    await page.getByRole('button', { name: 'Share' }).click()
    await page.getByLabel('Email').fill(second.email)
    await page.getByRole('button', { name: 'Invite' }).click()
    await page.getByText('has not answered yet').waitFor()
  })
  const other = await person()
  await at('second-user', other.page, async () => {
    await login(other.page, second)
    if (await other.page.getByRole('link', { name: 'Users', exact: true }).count()) throw new Error('a user sees administration')
    await other.page.getByRole('button', { name: 'Notifications, 1 unread' }).click()
    await other.page.getByText(`shares ${folder} with you`).click()
    await other.page.getByRole('button', { name: 'Accept' }).click()
    await other.page.getByRole('tab', { name: /Folders/ }).click()
    await other.page.getByRole('link', { name: folder }).click()
    await other.page.getByRole('button', { name: 'tree' }).waitFor()
    if (await other.page.getByRole('button', { name: 'Upload' }).count()) throw new Error('who may read only is offered an upload')
  })
  await at('one-time-passwords', other.page, async () => {
    await other.page.goto(`${web}/profile?tab=security`)
    await other.page.getByRole('button', { name: 'Turn on' }).click()
    const key = await other.page.locator('.cli code').first().innerText()
    await other.page.getByLabel('One-time password').fill(codeOf(key))
    await other.page.getByRole('button', { name: 'Turn on' }).click()
    await other.page.getByText('Recovery codes', { exact: true }).waitFor()
    const recovery = (await other.page.locator('.note code').innerText()).split(/\s+/)[0]
    await other.page.getByRole('button', { name: 'My account' }).click()
    await other.page.getByRole('menuitem', { name: 'Log out' }).click()
    await other.page.locator('input[name=username]').waitFor()
    await credentials(other.page, second)
    await other.page.getByLabel('One-time password').fill('000000')
    await other.page.getByRole('button', { name: 'Continue' }).click()
    await other.page.getByText('This code is not right').waitFor()
    await other.page.getByLabel('One-time password').fill(recovery)
    await other.page.getByRole('button', { name: 'Continue' }).click()
    await other.page.getByRole('heading', { name: /^Hello/ }).waitFor()
  })
  await other.context.close()
  await at('expired-login', page, async () => {
    await page.goto(`${web}/sessions/new`)
    await page.fill('input[name=session-name]', 'keep-this-name')
    await context.clearCookies()
    await page.getByText('Your login has ended').waitFor({ timeout: 120_000 })
    await page.getByRole('dialog').locator('input[name=password]').fill(admin.password)
    await page.getByRole('dialog').getByRole('button', { name: 'Log in' }).click()
    await page.getByText('Your login has ended').waitFor({ state: 'hidden' })
    if ((await page.inputValue('input[name=session-name]')) !== 'keep-this-name') throw new Error('the form was lost')
  })
  await at('palette', page, async () => {
    await page.keyboard.press('Control+k')
    await page.getByRole('combobox', { name: 'Go to or do anything' }).fill('audit')
    await page.keyboard.press('Enter')
    await page.getByRole('heading', { name: 'Audit log' }).waitFor()
  })
  await at('many-rows', page, async () => {
    await page.route('**/func/admin/gql', async (route) => {
      const asked = route.request().postDataJSON()
      if (!asked.query.includes('compute_session_list') || asked.variables.limit !== 100) return route.continue()
      const { offset } = asked.variables
      const items = Array.from({ length: 100 }, (_, i) => ({
        id: `00000000-0000-0000-0000-${String(offset + i).padStart(12, '0')}`,
        name: `session-${offset + i}`,
        type: 'interactive',
        image: 'berth/python:3.11',
        architecture: 'x86_64',
        status: ['RUNNING', 'PENDING', 'TERMINATED', 'ERROR', 'PULLING'][i % 5],
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
      }))
      await route.fulfill({ json: { data: { compute_session_list: { total_count: 100_000, items } } } })
    })
    await page.goto(`${web}/sessions?status=all`)
    await page.getByText('100,000 in all').waitFor()
    const frames = await page.evaluate(async () => {
      const box = document.querySelector('.dtable .scroll')
      const took = []
      let last = performance.now()
      const until = last + 3000
      await new Promise((done) => {
        const frame = (t) => {
          took.push(t - last)
          last = t
          box.scrollTop += 180
          if (t < until) requestAnimationFrame(frame)
          else done()
        }
        requestAnimationFrame(frame)
      })
      took.sort((a, b) => a - b)
      return {
        median: took[took.length >> 1],
        p95: took[Math.floor(took.length * 0.95)],
        rows: document.querySelectorAll('.rows .tr').length,
      }
    })
    console.log(
      `stories: a frame takes ${frames.median.toFixed(1)} ms, 95 % at most ${frames.p95.toFixed(1)} ms, ${frames.rows} rows are drawn`,
    )
    if (frames.rows > 120) throw new Error('the rows are not virtual')
    await page.evaluate(() => (document.querySelector('.dtable .scroll').scrollTop = 1e9))
    await page.getByText('session-99999').waitFor()
  })
  if (complaints.length) throw new Error(`the browser complained:\n${complaints.join('\n')}`)
  console.log('stories: well')
} catch (err) {
  if (shots) await page.screenshot({ path: `${shots}/failed.png` })
  console.error(`stories: step ${step} failed: ${err.message}\n${complaints.join('\n')}`)
  process.exitCode = 1
} finally {
  rmSync(files, { recursive: true, force: true })
  await browser.close()
}
