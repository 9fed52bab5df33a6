import { Button, Menu } from '@mantine/core'
import { useQuery, useQueryClient } from '@tanstack/react-query'
import { useState } from 'react'
import { AppButton, appTitle } from '@/app/AppButton'
import { AppShare } from '@/app/AppShare'
import { appsQuery, circuitsQuery, closeCircuit, forBrowser, type Circuit } from '@/app/queries'
import { bytes, slotLine } from '@/design/amounts'
import { Icon } from '@/design/icons'
import { Cli, ErrorState, Id, Panel, Skeleton, StateBadge, toast } from '@/design/parts'
import { t, tAny } from '@/words'
import type { Kernel, SessionDetail } from './queries'

/** Apps of a session: open, share, revoke. */
export function Apps({ session, name }: { session: string; name: string }) {
  const client = useQueryClient()
  const q = useQuery(appsQuery(session))
  const circuits = useQuery(circuitsQuery(session)).data ?? []
  const [sharing, setSharing] = useState('')
  const look = () => client.invalidateQueries({ queryKey: circuitsQuery(session).queryKey })
  const http = (q.data ?? []).filter(forBrowser)
  const shared = circuits.find((c) => c.id === sharing)
  const who = (c: Circuit) =>
    c.public ? t('apps.public') : c.shared_users.length ? t('appshare.some', { n: c.shared_users.length }) : t('apps.private')
  return (
    <Panel title={t('apps.title')} body={false}>
      {q.isError ? (
        <div className="body">
          <ErrorState error={q.error} retry={() => void q.refetch()} />
        </div>
      ) : !q.data ? (
        <div className="body">
          <Skeleton lines={2} h={24} />
        </div>
      ) : (
        <div className="lines">
          {http.map((a) => {
            const c = circuits.find((x) => x.app === a.name && x.mine && x.url)
            return (
              <div key={a.name} className="row wrap">
                <div className="grow">
                  <div>{appTitle(a.name)}</div>
                  <div className="small dim">
                    {a.state === 'missing'
                      ? t('apps.missing')
                      : a.state === 'failed'
                        ? (a.detail ?? t('apps.failed'))
                        : c
                          ? who(c)
                          : tAny(`apps.${a.state ?? 'stopped'}`)}
                  </div>
                </div>
                <AppButton session={session} app={a.name} detail={a.detail} missing={a.state === 'missing'} />
                {c && (
                  <Menu position="bottom-end">
                    <Menu.Target>
                      <button type="button" className="iconbtn" aria-label={t('apps.more', { app: appTitle(a.name) })}>
                        <Icon name="more" />
                      </button>
                    </Menu.Target>
                    <Menu.Dropdown>
                      <Menu.Item onClick={() => setSharing(c.id)}>{t('appshare.do')}</Menu.Item>
                      <Menu.Item onClick={() => void navigator.clipboard.writeText(c.url)}>{t('apps.copy')}</Menu.Item>
                      <Menu.Item color="var(--b-failed)" onClick={() => void closeCircuit(c.id).then(look, (e: Error) => toast(e.message))}>
                        {t('apps.revoke')}
                      </Menu.Item>
                    </Menu.Dropdown>
                  </Menu>
                )}
              </div>
            )
          })}
          {http.length === 0 && <div className="dim small">{t('apps.none')}</div>}
        </div>
      )}
      {shared && <AppShare open onClose={() => setSharing('')} session={session} name={name} of={shared} />}
    </Panel>
  )
}

/** What of a kernel is measured now, in few words. */
export function useOf(k: Kernel): string {
  const cpu = k.stat['cpu_util']?.current
  const mem = k.stat['mem']?.current
  return (
    [cpu !== undefined ? `CPU ${Math.round(Number(cpu))} %` : '', mem !== undefined ? bytes(mem) : ''].filter(Boolean).join(' · ') || '–'
  )
}

/** The containers of a cluster session. */
export function Kernels({ of: s, onLog }: { of: SessionDetail; onLog: (kernel: string) => void }) {
  return (
    <div className="panel bare">
      <div className="lines">
        {s.kernels.map((k) => (
          <div key={k.id} className="row wrap text-m">
            <strong className="w-90 medium">{k.cluster_hostname}</strong>
            <span className="dim w-70">{k.cluster_role === 'main' ? t('kernel.main') : t('kernel.sub', { n: k.cluster_idx })}</span>
            <StateBadge status={k.status} />
            <span className="grow soft">{slotLine(k.slots)}</span>
            {k.status === 'RUNNING' && <span className="soft">{useOf(k)}</span>}
            <span className="dim" title={t('kernel.agent')}>
              {k.agent ?? '–'}
            </span>
            {k.exit_code !== null && <span className="dim">{t('session.exit', { code: k.exit_code })}</span>}
            <Button size="compact-sm" onClick={() => onLog(k.id)} aria-label={`${t('kernel.log')} ${k.cluster_hostname}`}>
              {t('kernel.log')}
            </Button>
            <Id id={k.id} />
          </div>
        ))}
      </div>
    </div>
  )
}

/** Addresses that editors of the person's machine open. The name of the host is what `berth ssh-config` writes. */
export function editorLinks(session: string): { vscode: string; jetbrains: string } {
  const host = encodeURIComponent(`${session}.berth`)
  return {
    vscode: `vscode://vscode-remote/ssh-remote+${host}/home/work/`,
    jetbrains: `jetbrains-gateway://connect#type=ssh&deploy=true&host=${host}&port=22&user=work&projectPath=%2Fhome%2Fwork`,
  }
}

/** Ways into a session from a machine of one's own. */
export function Connect({ of: s }: { of: SessionDetail }) {
  const links = editorLinks(s.name)
  return (
    <div className="stack pad-m">
      <div className="row wrap">
        <Button component="a" href={links.vscode} leftSection={<Icon name="open" size={14} />}>
          {t('connect.vscode')}
        </Button>
        <Button component="a" href={links.jetbrains} leftSection={<Icon name="open" size={14} />}>
          {t('connect.jetbrains')}
        </Button>
      </div>
      <p className="soft">{t('connect.text')}</p>
      <Cli line="berth ssh-config --write --include" />
      <p className="soft">{t('connect.shell')}</p>
      <Cli line={`berth ssh ${s.name}`} />
      <Cli line={`scp -r results ${s.name}.berth:/home/work/`} />
      <Cli line={`berth code ${s.name}`} />
      <Cli line={`berth port-forward ${s.name} 8080`} />
    </div>
  )
}
