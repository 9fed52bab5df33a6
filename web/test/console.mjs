// Drives the console in a browser: logs in, creates a session, opens its page, runs a command in its terminal, reads its log and ends it.
//
//   BERTH_WEB=http://127.0.0.1:8080 BERTH_ADMIN_EMAIL=... BERTH_ADMIN_PASSWORD=... node test/console.mjs [DIRECTORY FOR SCREENSHOTS]
//
// Every step has a deadline. What the browser complains about (policy, errors of scripts) fails the run.
import { mkdirSync } from 'node:fs'
import { chromium } from 'playwright-core'
import { chooseImage } from './lib.mjs'

const need = (name) => process.env[name] ?? (console.error(`console: ${name} is not set`), process.exit(2))
const web = need('BERTH_WEB').replace(/\/$/, '')
const email = need('BERTH_ADMIN_EMAIL')
const password = need('BERTH_ADMIN_PASSWORD')
const image = 'python'
const shots = process.argv[2]
if (shots) mkdirSync(shots, { recursive: true })

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] })
const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, locale: 'en-GB' })
context.setDefaultTimeout(120_000)
const page = await context.newPage()
const complaints = []
page.on('pageerror', (e) => complaints.push(`script: ${e.stack ?? e.message}`))
page.on('console', (m) => {
  if (m.type() === 'error' && /Content Security Policy|Uncaught/.test(m.text())) complaints.push(m.text())
})

let step = 'start'
async function at(name, work) {
  step = name
  const began = Date.now()
  await work()
  if (shots) await page.screenshot({ path: `${shots}/${name}.png` })
  console.log(`console: ${name} (${Date.now() - began} ms)`)
}

const name = `console-${Math.random().toString(36).slice(2, 8)}`
try {
  await at('refused-login', async () => {
    await page.goto(web)
    await page.fill('input[name=username]', email)
    await page.fill('input[name=password]', password + '-wrong')
    await page.getByRole('button', { name: 'Log in', exact: true }).click()
    await page.getByText('do not belong together').waitFor()
  })
  await at('login', async () => {
    await page.fill('input[name=password]', password)
    await page.getByRole('button', { name: 'Log in', exact: true }).click()
    await page.getByRole('heading', { name: /^Hello/ }).waitFor()
  })
  await at('new-session', async () => {
    await page.getByRole('link', { name: 'Sessions', exact: true }).first().click()
    await page.getByRole('button', { name: 'New session' }).first().click()
    await chooseImage(page, image)
    await page.getByRole('radio', { name: /^small/ }).click()
    await page.fill('input[name=session-name]', name)
    await page.getByText(/Starts now|Would wait/).waitFor()
  })
  await at('running', async () => {
    await page.getByTestId('start').click()
    await page.getByRole('heading', { name }).waitFor()
    await page.locator('.pagehead .badge.running').waitFor({ timeout: 120_000 })
  })
  await at('terminal', async () => {
    await page.getByRole('tab', { name: 'Terminal' }).click()
    await page.locator('.xterm-helper-textarea').waitFor()
    await page.locator('.xterm-rows').getByText(name).waitFor()
    await page.locator('.xterm').click()
    await page.keyboard.type('echo $((6*7))-for-the-log\n')
    await page.locator('.xterm-rows').getByText('42-for-the-log').first().waitFor()
  })
  await at('log', async () => {
    await page.getByRole('tab', { name: 'Log' }).click()
    await page.getByPlaceholder('Lines that contain…').waitFor()
  })
  await at('end', async () => {
    await page.getByRole('button', { name: 'End session' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'End session' }).click()
    await page.getByText('Ended by its user').first().waitFor()
  })
  const job = `${name}-job`
  await at('batch', async () => {
    await page.goto(`${web}/sessions/new`)
    await chooseImage(page, image)
    await page.getByRole('radio', { name: /^small/ }).click()
    await page.fill('input[name=session-name]', job)
    await page.getByRole('radio', { name: /^Batch/ }).click()
    await page.getByRole('textbox', { name: 'Command' }).fill('echo told by the job $((6*7))')
    await page.getByTestId('start').click()
    await page.getByRole('heading', { name: job }).waitFor()
    await page.locator('.pagehead .badge.ended, .pagehead .badge.failed').waitFor({ timeout: 120_000 })
  })
  await at('log-after-the-end', async () => {
    await page.getByLabel('Log', { exact: true }).getByText('told by the job 42').waitFor()
  })
  if (complaints.length) throw new Error(`the browser complained:\n${complaints.join('\n')}`)
  console.log('console: well')
} catch (err) {
  if (shots) await page.screenshot({ path: `${shots}/failed.png` })
  console.error(`console: step ${step} failed: ${err.message}\n${complaints.join('\n')}`)
  process.exitCode = 1
} finally {
  await browser.close()
}
