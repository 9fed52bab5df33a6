// What users do with the console, in a browser: the ten most frequent tasks with their clicks, files of folders and sessions, templates,
// notifications, the first visit, what goes wrong beside one. See README.md.
import { execFileSync, spawn } from 'node:child_process'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, utimesSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { random, stage } from './lib.mjs'

const s = await stage('user')
const { web } = s
const id = random()
const folder = `work-${id}`
const other = { email: `other-${id}@example.org`, password: '' }
const dir = mkdtempSync(join(tmpdir(), 'berth-user-'))
const tree = join(dir, 'tree')
mkdirSync(join(tree, 'sub'), { recursive: true })
const png = Buffer.from('iVBORw0KGgoAAAANSUhEUgAAAAoAAAAKCAIAAAACUFjqAAAAEklEQVR4nGP4z8CAB+GTG8HSALfKY52fTcuYAAAAAElFTkSuQmCC', 'base64')
writeFileSync(join(tree, 'note.txt'), 'first line\n')
writeFileSync(join(tree, 'dot.png'), png)
writeFileSync(join(tree, 'table.csv'), 'name,score\n"Ada, L.",3\nBob,<img src=x onerror=alert(1)>\n')
writeFileSync(
  join(tree, 'book.ipynb'),
  JSON.stringify({
    cells: [
      {
        cell_type: 'code',
        execution_count: null,
        id: 'a',
        metadata: {},
        outputs: [{ output_type: 'stream', name: 'stdout', text: ['earlier\n'] }],
        source: ["print('the answer is', 6*7)"],
      },
      {
        cell_type: 'code',
        execution_count: null,
        id: 'b',
        metadata: {},
        outputs: [{ output_type: 'display_data', metadata: {}, data: { 'text/html': ['<img src=x onerror=alert(2)>'] } }],
        source: [],
      },
    ],
    metadata: { kernelspec: { display_name: 'Python 3', language: 'python', name: 'python3' } },
    nbformat: 4,
    nbformat_minor: 5,
  }),
)
writeFileSync(join(tree, 'sub', 'deep.txt'), 'deep')

const me = await s.person()
const { page } = me
/** Clicks that a task took, in the page as a person has it after the login. */
const clicks = {}
async function counted(task, who, most, work) {
  await who.page.goto(web)
  await who.page.getByRole('heading', { name: /^Hello/ }).waitFor()
  const before = who.clicks
  await work()
  clicks[task] = who.clicks - before
  if (clicks[task] > most) throw new Error(`${task} took ${clicks[task]} clicks, at most ${most} are good`)
}
/** Asks the cluster as the person of a page. */
const ask = (p, method, path, body) =>
  p.evaluate(
    async ([method, path, body]) => {
      const r = await fetch('/func' + path, {
        method,
        headers: { 'Content-Type': 'application/json', 'X-BackendAI-Version': 'v8.20240915' },
        ...(body ? { body: JSON.stringify(body) } : {}),
      })
      const text = await r.text()
      if (!r.ok) throw new Error(`${method} ${path}: ${r.status} ${text}`)
      return text ? JSON.parse(text) : null
    },
    [method, path, body],
  )
const running = (p) => p.locator('.pagehead .badge.running').waitFor({ timeout: 120_000 })
let session = ''

try {
  await s.login(page, s.admin)
  await s.at('first-user', page, async () => {
    await counted('create a user', me, 3, async () => {
      await page.getByRole('link', { name: 'Users', exact: true }).click()
      await page.getByRole('button', { name: 'New user' }).click()
      await page.getByRole('dialog').getByLabel('Email').fill(other.email)
      await page.getByRole('switch', { name: /Has to change/ }).press('Space')
      await page.getByRole('button', { name: 'Create user' }).click()
      await page.getByText('can log in with this password').waitFor()
    })
    other.password = await page.getByRole('dialog').locator('code').innerText()
  })

  // The first visit of somebody who has nothing yet.
  const novice = await s.person()
  await s.at('tour', novice.page, async () => {
    await s.login(novice.page, other)
    const before = novice.clicks
    const tour = novice.page.getByRole('region', { name: 'A notebook in three steps' })
    await tour.getByRole('button', { name: /^Create folder/ }).click()
    await tour.getByRole('button', { name: /^Start / }).click()
    await tour.getByRole('button', { name: /^Open Jupyter/ }).waitFor({ timeout: 120_000 })
    const tab = novice.page.waitForEvent('popup')
    await tour.getByRole('button', { name: /^Open Jupyter/ }).click()
    const notebook = await tab
    await notebook.waitForURL(/\/(tree|lab)/, { timeout: 120_000 })
    await notebook.close()
    clicks['the first notebook of a new user'] = novice.clicks - before
    await s.accessible(novice.page, 'tour')
    await tour.getByRole('button', { name: 'Close the tour' }).click()
  })
  await s.at('end-all', novice.page, async () => {
    await counted('end everything of mine', novice, 2, async () => {
      await novice.page.getByRole('button', { name: 'End all…' }).click()
      await novice.page
        .getByRole('dialog')
        .getByRole('button', { name: /^End 1 session/ })
        .click()
      await novice.page.getByText('Nothing of yours is running').waitFor({ timeout: 120_000 })
    })
  })

  await s.at('upload-directory', page, async () => {
    await page.goto(`${web}/data`)
    await page.getByRole('button', { name: 'New folder' }).first().click()
    await page.fill('input[name=folder-name]', folder)
    await page.getByRole('button', { name: 'Create folder' }).click()
    await page.getByRole('heading', { name: folder }).waitFor()
    await counted('upload a directory', me, 4, async () => {
      await page.getByRole('link', { name: folder }).click()
      await page.getByRole('button', { name: 'Upload', exact: true }).click()
      const chooser = page.waitForEvent('filechooser')
      await page.getByRole('menuitem', { name: 'Upload a directory' }).click()
      await (await chooser).setFiles(tree)
      await page.getByText('5 files uploaded').waitFor()
    })
    await page.getByRole('button', { name: 'tree' }).click()
  })
  await s.at('preview-table', page, async () => {
    await page.getByRole('button', { name: 'table.csv' }).click()
    await page.getByText('Ada, L.').waitFor()
    await page.getByText('<img src=x onerror=alert(1)>').waitFor()
    await s.accessible(page, 'preview of a table')
    await page.getByRole('button', { name: 'Close the preview' }).click()
  })
  await s.at('preview-notebook', page, async () => {
    await page.getByRole('button', { name: 'book.ipynb' }).click()
    await page.getByText('earlier').waitFor()
    await page.getByText('Output as a page is not run here').waitFor()
    await s.accessible(page, 'preview of a notebook')
    await page.getByRole('button', { name: 'Close the preview' }).click()
  })
  await s.at('preview-image', page, async () => {
    await page.getByRole('button', { name: 'dot.png' }).click()
    await page.waitForFunction(() => document.querySelector('.picture img')?.naturalWidth === 10)
    await page.goBack()
    await page.getByRole('button', { name: 'dot.png' }).waitFor()
  })
  await s.at('edit', page, async () => {
    await page.getByRole('button', { name: 'note.txt' }).click()
    await page.getByRole('button', { name: 'Edit', exact: true }).click()
    await page.getByLabel('Text of note.txt').fill('first line\nsecond line\n')
    await page.getByRole('button', { name: 'Save', exact: true }).click()
    await page.getByText('· Saved').waitFor()
    await page.getByText('second line').waitFor()
  })
  await s.at('edit-conflict', page, async () => {
    await page.getByRole('button', { name: 'Edit', exact: true }).click()
    await page.getByLabel('Text of note.txt').fill('mine\n')
    // Somebody else writes the file meanwhile.
    const elsewhere = await me.context.newPage()
    s.watch(elsewhere)
    await elsewhere.goto(page.url())
    await elsewhere.getByRole('button', { name: 'Edit', exact: true }).click()
    await elsewhere.getByLabel('Text of note.txt').fill('theirs, which is longer\n')
    await elsewhere.getByRole('button', { name: 'Save', exact: true }).click()
    await elsewhere.getByText('· Saved').waitFor()
    await elsewhere.close()
    await page.getByRole('button', { name: 'Save', exact: true }).click()
    await page.getByText('was changed by somebody else').waitFor()
    await s.accessible(page, 'conflict of an edit')
    await page.getByRole('button', { name: 'Keep both as note (mine).txt' }).click()
    await page.getByText('theirs, which is longer').waitFor()
    await page.getByRole('button', { name: 'Close the preview' }).click()
    await page.getByRole('button', { name: 'note (mine).txt' }).waitFor()
  })
  await s.at('unsaved-text-is-asked-about', page, async () => {
    await page.getByRole('button', { name: 'note.txt', exact: true }).click()
    await page.getByRole('button', { name: 'Edit', exact: true }).click()
    await page.getByLabel('Text of note.txt').fill('do not lose me')
    await page.getByRole('link', { name: 'Images', exact: true }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Back' }).click()
    if ((await page.getByLabel('Text of note.txt').inputValue()) !== 'do not lose me') throw new Error('the text was lost')
    await page.getByRole('main').getByRole('button', { name: 'Discard changes' }).click()
    await page.getByRole('button', { name: 'Close the preview' }).click()
  })
  await s.at('move', page, async () => {
    await page.getByRole('row').filter({ hasText: 'note (mine).txt' }).getByRole('checkbox').check()
    await page.getByRole('button', { name: 'Move…' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'sub' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Move here' }).click()
    await page.getByRole('row').filter({ hasText: 'note (mine).txt' }).waitFor({ state: 'hidden' })
    await page.getByRole('button', { name: 'sub' }).click()
    await page.getByRole('button', { name: 'note (mine).txt' }).waitFor()
  })
  await s.at('zip', page, async () => {
    await page.getByRole('button', { name: folder, exact: true }).click()
    await page.getByRole('button', { name: 'tree' }).waitFor()
    const came = page.waitForEvent('download')
    await page.locator('.pagehead').getByRole('button', { name: 'More', exact: true }).click()
    await page.getByRole('menuitem', { name: 'Download as an archive' }).click()
    const zip = readFileSync(await (await came).path())
    if (zip.subarray(0, 2).toString() !== 'PK' || !zip.includes('tree/sub/deep.txt')) throw new Error('this is no archive of the folder')
  })
  await s.at('share', page, async () => {
    await counted('share a folder', me, 3, async () => {
      await page.getByRole('link', { name: folder }).click()
      await page.getByRole('button', { name: 'Share', exact: true }).click()
      await page.getByLabel('Email').fill(other.email)
      await page.getByRole('button', { name: 'Invite' }).click()
      await page.getByText('has not answered yet').waitFor()
    })
    await s.accessible(page, 'sharing')
  })
  await s.at('notified', novice.page, async () => {
    await novice.page.goto(web)
    await novice.page.getByRole('button', { name: 'Notifications, 1 unread' }).click()
    await s.accessible(novice.page, 'notifications')
    await novice.page.getByText(`shares ${folder} with you`).click()
    await novice.page.getByRole('button', { name: 'Accept' }).click()
    await novice.page.getByRole('tab', { name: /Folders/ }).click()
    await novice.page.getByRole('link', { name: folder }).click()
    await novice.page.getByRole('button', { name: 'tree' }).click()
    await novice.page.getByRole('button', { name: 'note.txt', exact: true }).click()
    await novice.page.getByText('theirs, which is longer').waitFor()
    if (await novice.page.getByRole('button', { name: 'Edit', exact: true }).count())
      throw new Error('who may only read is offered an editor')
  })

  await s.at('new-session', page, async () => {
    await counted('new session from a preset with a folder', me, 4, async () => {
      await page.getByRole('button', { name: 'New session' }).first().click()
      await page.getByRole('radio', { name: /^small/ }).waitFor()
      await page.getByRole('combobox', { name: 'Add a folder' }).click()
      await page.getByRole('option', { name: folder }).click()
      await page.getByText(/Starts now|Would wait/).waitFor()
      await page.getByTestId('start').click()
    })
    await page.waitForURL(/\/sessions\/[0-9a-f-]{36}/)
    session = page.url().match(/sessions\/([0-9a-f-]{36})/)[1]
    await running(page)
  })
  const name = (await page.title()).replace(' · Berth', '')
  await s.at('mounted', page, async () => {
    await page
      .locator('.xterm-rows')
      .getByText(/work@|\$/)
      .first()
      .waitFor()
    await page.locator('.xterm').click()
    await page.keyboard.type(`cat ${folder}/tree/sub/deep.txt; echo from-the-session > ${folder}/made.txt; echo $((40+2))-done\n`)
    await page.locator('.xterm-rows').getByText('42-done').first().waitFor()
    await page.locator('.xterm-rows').getByText('deep', { exact: false }).first().waitFor()
  })
  await s.at('jupyter', page, async () => {
    let notebook
    await counted('open Jupyter of a running session', me, 1, async () => {
      const tab = page.waitForEvent('popup')
      await page.getByRole('button', { name: 'Open Jupyter' }).first().click()
      notebook = await tab
      await notebook.waitForURL(/\/tree/, { timeout: 120_000 })
    })
    await notebook.goto(new URL(`/notebooks/${folder}/tree/book.ipynb`, notebook.url()).href)
    await notebook.waitForFunction(
      () => window.Jupyter?.notebook?._fully_loaded && window.Jupyter.notebook.kernel?.is_connected(),
      undefined,
      { timeout: 120_000 },
    )
    await notebook.evaluate(() => window.Jupyter.notebook.execute_all_cells())
    await notebook.getByText('the answer is 42').first().waitFor({ timeout: 120_000 })
    await notebook.close()
  })
  await s.at('share-app', page, async () => {
    await page.goto(`${web}/sessions/${session}`)
    await page.getByRole('button', { name: 'More for Jupyter' }).click()
    await page.getByRole('menuitem', { name: 'Share…' }).click()
    await page.getByLabel('Email of somebody').fill(other.email)
    await page.getByRole('dialog').getByRole('button', { name: 'Share', exact: true }).click()
    await page.getByRole('dialog').getByText(other.email).waitFor()
    await s.accessible(page, 'sharing of an app')
    const link = await page.getByRole('dialog').locator('.cli code').first().innerText()
    await page.getByRole('button', { name: 'Revoke the link' }).click()
    await page.getByRole('dialog').waitFor({ state: 'hidden' })
    const r = await me.context.request.get(link, { maxRedirects: 0, failOnStatusCode: false }).catch(() => null)
    if (r && r.status() === 200) throw new Error('a revoked link still opens the app')
  })
  await s.at('session-files', page, async () => {
    await page.getByRole('tab', { name: 'Files' }).click()
    await page.getByTestId('session-upload').setInputFiles(join(tree, 'note.txt'))
    await page.getByText('1 file sent into /home/work').waitFor()
    const came = page.waitForEvent('download')
    await page.getByRole('button', { name: 'note.txt' }).click()
    if (readFileSync(await (await came).path(), 'utf8') !== 'first line\n') throw new Error('the file is another one')
    await page.getByRole('row').filter({ hasText: folder }).getByText('folder, stays').waitFor()
    await s.accessible(page, 'files of a session')
  })
  await s.at('connect', page, async () => {
    await page.getByRole('tab', { name: 'Connect' }).click()
    const link = await page.getByRole('link', { name: 'Open in VS Code' }).getAttribute('href')
    if (link !== `vscode://vscode-remote/ssh-remote+${name}.berth/home/work/`) throw new Error(`the link is ${link}`)
    await s.accessible(page, 'connect')
  })
  await s.at('save-as-image', page, async () => {
    await page.locator('.pagehead').getByRole('button', { name: 'More', exact: true }).click()
    await page.getByRole('menuitem', { name: 'Save as image' }).waitFor()
    await s.accessible(page, 'menu of a session')
    await page.getByRole('menuitem', { name: 'Save as image' }).click()
    await page.getByLabel('Tag of the image').fill(`v${id}`)
    await page.getByRole('dialog').getByRole('button', { name: 'Save as image' }).click()
    await page.getByText('is saved as an image of yours').waitFor({ timeout: 120_000 })
  })

  await s.at('template', page, async () => {
    await page.goto(`${web}/sessions/new?from=${session}`)
    await page.getByText(/Starts now|Would wait/).waitFor()
    await page.getByRole('button', { name: 'Save as template' }).click()
    await page.fill('input[name=template-name]', `tpl-${id}`)
    await page.getByRole('button', { name: 'Save as template' }).last().click()
    await page.getByText(`The template tpl-${id} is saved.`).waitFor()
    await page.getByRole('link', { name: 'Templates', exact: true }).click()
    await page.getByRole('button', { name: `tpl-${id}`, exact: true }).click()
    await page.getByLabel('Template (YAML or JSON)').waitFor()
    if (!(await page.getByLabel('Template (YAML or JSON)').inputValue()).includes(folder)) throw new Error('the template forgot the folder')
    await page.keyboard.press('Escape')
    await page
      .getByRole('row')
      .filter({ hasText: `tpl-${id}` })
      .getByRole('button', { name: 'Use' })
      .click()
    await page.getByLabel(`Where ${folder} appears`).waitFor()
    await page.getByText(/Starts now|Would wait/).waitFor()
    await page.getByRole('button', { name: 'Copy as…' }).click()
    await page.getByRole('menuitem', { name: 'API request' }).click()
    const copied = await page.evaluate(() => navigator.clipboard.readText())
    if (!copied.includes('curl -X POST "$BACKEND_ENDPOINT/session"')) throw new Error(`copied was ${copied}`)
  })

  const job = `job-${id}`
  await s.at('batch', page, async () => {
    const made = await ask(page, 'GET', `/session/${session}`)
    await ask(page, 'POST', '/session', {
      name: job,
      image: made.image ?? 'python',
      type: 'batch',
      group: 'default',
      enqueueOnly: true,
      startupCommand: 'echo last words; exit 3',
      config: { resources: { cpu: '1', mem: '268435456' } },
    })
    await page.goto(`${web}/sessions?status=ended`)
    await page.getByRole('link', { name: job }).waitFor({ timeout: 120_000 })
    await counted("see the log of last night's batch job", me, 2, async () => {
      await page.getByRole('link', { name: job }).first().click()
      await page.getByLabel('Log', { exact: true }).getByText('last words').waitFor()
    })
    await page.getByText('exit code 3').first().waitFor()
    await page.getByRole('button', { name: /^Notifications, [1-9]/ }).click()
    await page.getByText(`${job} failed`).waitFor()
    await page.keyboard.press('Escape')
  })
  await s.at('start-again', page, async () => {
    await counted('start the same thing as yesterday', me, 1, async () => {
      await page.getByRole('button', { name: 'Start again' }).first().click()
      await page.waitForURL(/\/sessions\/[0-9a-f-]{36}/)
    })
    await page.getByLabel('Log', { exact: true }).getByText('last words').waitFor({ timeout: 120_000 })
  })
  await s.at('pending', page, async () => {
    await ask(page, 'POST', '/session', {
      name: `big-${id}`,
      image: 'python',
      type: 'interactive',
      group: 'default',
      enqueueOnly: true,
      config: { resources: { cpu: '1000', mem: '268435456' } },
    }).catch(async (err) => {
      if (!/quota|limit/i.test(err.message)) throw err
    })
    await counted('know why mine waits', me, 0, async () => {
      await page
        .getByText(/agent|larger|CPU/i)
        .first()
        .waitFor()
      await page.getByText(`big-${id}`).first().waitFor()
    })
    await page
      .getByRole('link', { name: `big-${id}` })
      .first()
      .click()
    await page.getByRole('heading', { name: 'Why it waits' }).waitFor()
    await s.accessible(page, 'waiting session')
    await page.getByRole('button', { name: 'End session' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'End session' }).click()
    await page.locator('.pagehead .badge.ended').waitFor({ timeout: 120_000 })
  })
  await s.at('peek-views-columns', page, async () => {
    await page.goto(`${web}/sessions?status=all`)
    const table = page.getByRole('region', { name: 'Sessions' })
    await table.getByRole('link').first().waitFor()
    await table.focus()
    await page.keyboard.press('j')
    await page.keyboard.press('Space')
    await page.getByRole('complementary', { name: /^Peek at/ }).waitFor()
    await s.accessible(page, 'peek')
    const first = await page.getByRole('complementary').getByRole('heading').innerText()
    await page.keyboard.press('j')
    await page.waitForFunction((f) => document.querySelector('.peek h2')?.textContent !== f, first)
    await page.keyboard.press('Escape')
    await page.getByRole('complementary').waitFor({ state: 'hidden' })
    await page.getByRole('button', { name: 'Columns' }).click()
    await page.getByRole('menuitemcheckbox', { name: 'Image' }).click()
    await page.keyboard.press('Escape')
    await page.getByRole('columnheader', { name: 'Image' }).waitFor({ state: 'hidden' })
    await page.getByRole('button', { name: 'Views' }).click()
    await page.getByRole('menuitem', { name: 'Save this view…' }).click()
    await page.getByLabel('Name of the view').fill('everything')
    await page.getByRole('dialog').getByRole('button', { name: 'Save', exact: true }).click()
    await page.goto(`${web}/sessions`)
    await page.getByRole('button', { name: 'Views' }).click()
    await page.getByRole('menuitem', { name: 'everything' }).click()
    await page.waitForURL(/status=all/)
  })

  // What goes wrong beside one.
  await s.at('permission-taken-away', novice.page, async () => {
    const shares = await ask(page, 'GET', `/folders/_/shared`)
    const mine = shares.shared.find((x) => x.shared_to.email === other.email)
    await ask(page, 'POST', '/folders/_/sharing', {
      vfolder_id: mine.vfolder_id,
      user_perm_list: [{ user_id: mine.shared_to.uuid, perm: null }],
    })
    await novice.page.getByRole('button', { name: 'Close the preview' }).click()
    await novice.page.getByRole('button', { name: folder, exact: true }).click()
    await novice.page.reload()
    await novice.page.locator('.fault').first().waitFor()
    await novice.page
      .getByRole('button', { name: 'Folders' })
      .or(novice.page.getByRole('link', { name: 'Folders' }))
      .first()
      .click()
    await novice.page.getByRole('heading', { name: 'Data' }).waitFor()
  })
  await s.at('deleted-elsewhere', page, async () => {
    await page.goto(`${web}/data`)
    await page.getByRole('link', { name: folder }).click()
    await page.getByRole('button', { name: 'tree' }).click()
    const at = page.url()
    await page.getByRole('button', { name: 'note.txt', exact: true }).click()
    await page.getByText('theirs').waitFor()
    const vf = at.match(/data\/([0-9a-f]+)/)[1]
    await ask(page, 'DELETE', `/folders/${vf}/delete-files`, { files: ['tree/note.txt'], recursive: false })
    await page.reload()
    await page.getByText('The file is not there any more').waitFor()
    await page.getByRole('main').getByRole('button', { name: 'Back' }).click()
    await page.getByRole('button', { name: 'dot.png' }).waitFor()
    await page.goto(`${web}/sessions/00000000-0000-4000-8000-000000000000`)
    await page.getByText('There is no such session').waitFor()
  })
  await s.at('upload-goes-on', page, async () => {
    const big = join(dir, 'big.bin')
    writeFileSync(big, Buffer.alloc(64 << 20, 3))
    utimesSync(big, 1_700_000_000, 1_700_000_000)
    const chooseIn = async (p, testid) => {
      await p.getByTestId(testid).setInputFiles(big)
    }
    const first = await s.person()
    await s.login(first.page, s.admin)
    await first.page.goto(`${web}/data`)
    await first.page.getByRole('link', { name: folder }).click()
    // The line breaks for good after the second chunk.
    let chunks = 0
    await first.context.route('**/upload?**', async (route) => {
      if (route.request().method() === 'PATCH' && ++chunks > 2) return route.abort()
      return route.continue()
    })
    await chooseIn(first.page, 'upload-files')
    await first.page.waitForFunction(() => /(32|48) MiB \/ 64 MiB/.test(document.querySelector('.toasts')?.textContent ?? ''), undefined, {
      timeout: 120_000,
    })
    const kept = await first.page.evaluate(() => localStorage.getItem('berth.uploads'))
    if (!kept || /token|eyJ|http/.test(kept)) throw new Error(`what the browser keeps is ${kept}`)
    const storage = await first.context.storageState()
    await first.context.close()

    // The browser is opened anew.
    const second = await s.person({ storageState: storage })
    const sent = []
    second.page.on('request', (r) => {
      if (r.method() === 'PATCH' && r.url().includes('/upload?')) sent.push(Number(r.headers()['upload-offset']))
    })
    await second.page.goto(web)
    await second.page.getByText('1 upload stopped when the browser closed').waitFor()
    await s.accessible(second.page, 'interrupted upload')
    await chooseIn(second.page, 'resume-files')
    await second.page.getByText('1 file uploaded').waitFor({ timeout: 120_000 })
    if (!sent.length || sent[0] < 32 << 20) throw new Error(`the upload went on at ${sent[0]}`)
    await second.page.waitForFunction(() => !localStorage.getItem('berth.uploads'))
    await second.context.close()
  })
  await s.at('installable', page, async () => {
    await page.goto(web)
    const r = await page.evaluate(async () => {
      await navigator.serviceWorker.ready
      const m = await (await fetch('/manifest.webmanifest')).json()
      const icons = await Promise.all(m.icons.map(async (i) => (await fetch(i.src)).headers.get('Content-Type')))
      await fetch('/func/auth').catch(() => {})
      const kept = []
      for (const n of await caches.keys()) for (const k of await (await caches.open(n)).keys()) kept.push(new URL(k.url).pathname)
      return { name: m.name, icons, kept }
    })
    if (r.name !== 'Berth' || !r.icons.every((t) => t?.startsWith('image/'))) throw new Error(`the manifest says ${JSON.stringify(r)}`)
    const bad = r.kept.filter((p) => !p.startsWith('/assets/'))
    if (bad.length) throw new Error(`the service worker keeps ${bad.join(', ')}`)
  })

  // Every page, light and dark, wide and narrow.
  const places = [
    '/',
    '/sessions?status=all',
    '/sessions/new',
    `/sessions/${session}`,
    '/data',
    '/images',
    '/templates',
    '/profile',
    '/profile?tab=security',
    '/profile?tab=keys',
    '/profile?tab=notices',
    '/design',
    '/admin/cluster',
    '/admin/users',
    '/admin/projects',
    '/admin/policies',
    '/admin/users/import',
    '/admin/keypairs',
    '/admin/offers',
    '/admin/usage',
    '/admin/usage?tab=trend',
    '/admin/usage?tab=prices',
    '/admin/audit',
    '/admin/settings',
  ]
  for (const scheme of ['light', 'dark']) {
    await page.emulateMedia({ colorScheme: scheme })
    for (const [i, place] of places.entries()) {
      await s.at(`page-${scheme}-${i}`, page, async () => {
        await page.goto(web + place)
        await page.locator('main h1, main h2').first().waitFor()
        if (place !== '/design') await page.locator('.bone').first().waitFor({ state: 'hidden' })
        await s.accessible(page, `${place} (${scheme})`)
      })
    }
  }
  await page.emulateMedia({ colorScheme: 'light' })
  await page.setViewportSize({ width: 390, height: 844 })
  for (const [i, place] of places.entries()) {
    await s.at(`page-narrow-${i}`, page, async () => {
      await page.goto(web + place)
      await page.locator('main h1, main h2').first().waitFor()
      const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)
      if (over > 1) throw new Error(`${place} is ${over} px wider than a phone`)
    })
  }
  await page.setViewportSize({ width: 1440, height: 900 })
  if (process.env.BERTH_BIN) {
    await s.at('console-on-this-machine', page, async () => {
      const served = spawn(process.env.BERTH_BIN, ['console', '--local', '--port', '0', '--no-browser'])
      let said = ''
      const address = await new Promise((ok, no) => {
        served.on('exit', () => no(new Error(`berth console --local ended: ${said}`)))
        for (const stream of [served.stdout, served.stderr])
          stream.on('data', (d) => {
            said += d
            const m = /the console: (\S+)/.exec(said)
            if (m) ok(m[1])
          })
      })
      const local = await s.person()
      try {
        await local.page.goto(address)
        await local.page.getByRole('heading', { name: /^Hello/ }).waitFor()
        const tab = local.page.waitForEvent('popup')
        await local.page.getByRole('button', { name: 'Open Jupyter' }).first().click()
        await (await tab).waitForURL(/^http:\/\/127\.0\.0\.1:\d+\/tree/, { timeout: 120_000 })
        await local.page.goto(new URL(`/sessions/${session}`, address).href)
        await local.page.locator('.xterm-rows').getByText(/\$/).first().waitFor()
        await local.page.locator('.xterm').click()
        await local.page.keyboard.type('echo $((50+1))-local\n')
        await local.page.locator('.xterm-rows').getByText('51-local').first().waitFor()
        const stranger = await fetch(new URL('/func/folders', address))
        if (stranger.status !== 404) throw new Error(`whoever has no cookie gets ${stranger.status}`)
      } finally {
        await local.context.close()
        served.kill('SIGINT')
      }
    })
  }
  await s.at('terminate', page, async () => {
    await page.goto(`${web}/sessions/${session}`)
    await page.getByRole('button', { name: 'End session' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'End session' }).click()
    await page.getByText('Ended by its user').first().waitFor({ timeout: 120_000 })
  })
  await s.at('take-a-node-out', page, async () => {
    const chief = await s.person()
    await s.login(chief.page, s.admin)
    await counted('who uses the GPUs', chief, 0, async () => {
      await chief.page.getByRole('heading', { name: /^Most .* this month$/ }).waitFor()
    })
    await counted('take a node out', chief, 2, async () => {
      await chief.page.getByRole('link', { name: 'Cluster', exact: true }).first().click()
      await chief.page.getByText('nothing new starts on the agent').waitFor()
      await chief.page
        .getByRole('button', { name: /^Drain agent/ })
        .first()
        .click()
      await chief.page.locator('.tile').first().getByText('Cordoned').waitFor()
    })
    await chief.page.getByRole('button', { name: 'Undo' }).click()
    await chief.page
      .getByRole('button', { name: /^Drain agent/ })
      .first()
      .waitFor()
    await chief.context.close()
  })
  if (process.env.BERTH_STOP && process.env.BERTH_START) {
    await s.at('server-restarts', page, async () => {
      await page.goto(`${web}/sessions/new`)
      await page.fill('input[name=session-name]', 'typed-before')
      execFileSync('sh', ['-c', process.env.BERTH_STOP], { stdio: 'ignore' })
      await page.getByText('The cluster has not answered for').waitFor({ timeout: 120_000 })
      execFileSync('sh', ['-c', process.env.BERTH_START], { stdio: 'ignore' })
      await page.getByText('The cluster has not answered for').waitFor({ state: 'hidden', timeout: 120_000 })
      if ((await page.inputValue('input[name=session-name]')) !== 'typed-before') throw new Error('the form was lost')
    })
  }

  console.log(`user: clicks ${JSON.stringify(clicks)}`)
  // What is written down is what was counted, task by task.
  const written = {}
  for (const line of readFileSync(new URL('../../docs/console-review.md', import.meta.url), 'utf8').split('\n')) {
    const [, task, , here] = /^\| ([^|]+?)(?: \(administrator\))? \| (\d+) \| (\d+)/.exec(line) ?? []
    if (task) written[task] = Number(here)
  }
  for (const task of new Set([...Object.keys(clicks), ...Object.keys(written)]))
    if (clicks[task] !== written[task])
      throw new Error(`${task}: ${clicks[task] ?? 'not counted'} clicks, and docs/console-review.md says ${written[task] ?? 'nothing'}`)
  await s.end()
} catch (err) {
  await s.end(err)
} finally {
  rmSync(dir, { recursive: true, force: true })
}
