import { Button, Tooltip } from '@mantine/core'
import { useState } from 'react'
import { Icon } from '@/design/icons'
import { ErrorState, toast } from '@/design/parts'
import { Problem } from '@/api/http'
import { t } from '@/words'
import { enterApp } from './queries'

const titles: Record<string, string> = {
  jupyter: 'Jupyter',
  jupyterlab: 'JupyterLab',
  ttyd: 'Terminal',
  tensorboard: 'TensorBoard',
  vscode: 'VS Code',
  rstudio: 'RStudio',
  mlflow: 'MLflow',
  nniboard: 'NNI',
}

export function appTitle(name: string): string {
  return titles[name] ?? name
}

/** Opens an app in a tab of its own. What goes wrong is said here, never in an empty tab. */
export function AppButton({
  session,
  app,
  main,
  size = 'compact-sm',
  detail,
  missing,
}: {
  session: string
  app: string
  main?: boolean
  size?: string
  detail?: string | undefined
  missing?: boolean
}) {
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState<unknown>(null)
  const open = async () => {
    if (busy) return
    // The tab is opened by the click itself; browsers forbid it afterwards.
    const tab = window.open('about:blank', '_blank')
    setBusy(true)
    setError(null)
    try {
      const url = await enterApp(session, app)
      if (tab) {
        tab.opener = null
        tab.location.replace(url)
      } else
        toast(t('app.blocked', { app: appTitle(app) }), { label: t('do.open'), run: () => window.open(url, '_blank', 'noopener') }, 20_000)
    } catch (err) {
      tab?.close()
      setError(err)
    } finally {
      setBusy(false)
    }
  }
  const button = (
    <Button
      size={size}
      variant={main ? 'filled' : 'default'}
      loading={busy}
      disabled={!!missing}
      onClick={(e) => {
        e.stopPropagation()
        void open()
      }}
      rightSection={<Icon name="open" size={12} />}
      aria-label={busy ? t('app.opening', { app: appTitle(app) }) : t('app.open', { app: appTitle(app) })}>
      {appTitle(app)}
    </Button>
  )
  return (
    <>
      {detail ? (
        <Tooltip label={detail} multiline maw={320}>
          <span tabIndex={missing ? 0 : -1}>{button}</span>
        </Tooltip>
      ) : (
        button
      )}
      {error !== null && (
        <div className="line-own">
          <ErrorState error={error} what={error instanceof Problem ? t('app.failed', { app: appTitle(app) }) : ''} />
        </div>
      )}
    </>
  )
}
