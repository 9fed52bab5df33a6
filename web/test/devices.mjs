// Devices in a browser: a session with half a GPU of a machine that does not exist, what its page and that of its agent show, and the agent is
// taken out by two clicks.
import { chooseImage, random, stage } from './lib.mjs'

const s = await stage('devices')
const image = 'python'
const name = `half-${random()}`
const { page } = await s.person()
try {
  await s.login(page, s.admin)
  await s.at('half-a-gpu', page, async () => {
    await page.goto(`${s.web}/sessions/new`)
    await chooseImage(page, image)
    await page.getByRole('radio', { name: /^small/ }).click()
    await page.getByRole('radiogroup', { name: 'GPU' }).getByRole('radio', { name: 'half a GPU' }).click()
    await page.fill('input[name=session-name]', name)
    await page.getByText(/Starts now|Would wait/).waitFor()
    await s.accessible(page, 'new session with a part of a GPU')
    await page.getByTestId('start').click()
    await page.locator('.pagehead .badge.running').waitFor({ timeout: 120_000 })
  })
  await s.at('devices-of-a-session', page, async () => {
    await page.getByText(/half a GPU · NUMA node \d/).waitFor()
    await page.getByText('A100-SXM4-80GB').first().waitFor()
    await s.accessible(page, 'devices of a session')
  })
  await s.at('topology', page, async () => {
    await page.goto(`${s.web}/admin/cluster`)
    await page.locator('.tile').first().click()
    const drawn = page.getByRole('dialog')
    await drawn.getByRole('region', { name: 'NUMA node 1' }).getByText('GPU 7').waitFor()
    await drawn.getByRole('list', { name: 'Links between devices' }).getByText('direct link').first().waitFor()
    await drawn.locator('.device').getByRole('link', { name }).first().waitFor()
    await s.accessible(page, 'topology of an agent')
  })
  for (const scheme of ['dark', 'light']) {
    await s.at(`topology-${scheme}`, page, async () => {
      await page.emulateMedia({ colorScheme: scheme })
      // The dialog is open meanwhile; its colours are those of the scheme as soon as the scheme is there.
      await page.locator(`html[data-mantine-color-scheme=${scheme}]`).waitFor()
      const left = await page.evaluate(() => document.getAnimations().filter((a) => a instanceof CSSTransition).length)
      if (left) throw new Error(`${left} transitions run although no motion is wanted`)
      await s.accessible(page, `topology (${scheme})`)
    })
  }
  await s.at('narrow', page, async () => {
    await page.setViewportSize({ width: 390, height: 844 })
    const wide = await page.evaluate(() => document.documentElement.scrollWidth > window.innerWidth)
    if (wide) throw new Error('the page is wider than a phone')
    await page.setViewportSize({ width: 1440, height: 900 })
  })
  await s.at('drain', page, async () => {
    await page.goto(`${s.web}/admin/cluster`)
    await page.getByText('nothing new starts on the agent').waitFor()
    await page
      .getByRole('button', { name: /^Drain agent/ })
      .first()
      .click()
    await page.locator('.tile').first().getByText('Cordoned').waitFor()
    await page.getByRole('button', { name: 'Undo' }).click()
    await page
      .getByRole('button', { name: /^Drain agent/ })
      .first()
      .waitFor()
  })
  await s.at('end', page, async () => {
    await page.goto(`${s.web}/sessions`)
    await page.getByRole('link', { name }).click()
    await page.getByRole('button', { name: 'End session' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'End session' }).click()
    await page.getByText('Ended by its user').first().waitFor()
  })
  await s.end()
} catch (err) {
  await s.end(err)
}
