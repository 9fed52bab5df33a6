import { useQuery } from '@tanstack/react-query'
import { Fragment } from 'react'
import type { Held, Kernel } from '@/api/types'
import { bytes, slotName, slotWords } from '@/design/amounts'
import { Cli, ErrorState, Panel, Skeleton, StateBadge } from '@/design/parts'
import { t } from '@/words'
import { devicesQuery } from './queries'

/** The devices that a session holds, why these, and how busy they are. What is not measured is left out. */
export function HeldDevices({ session, name }: { session: string; name: string }) {
  const q = useQuery(devicesQuery(session))
  const kernels = (q.data?.kernels ?? []).filter((k) => k.devices.length > 0)
  return (
    <Panel title={t('devices.title')} body={false}>
      {q.isError && !q.data ? (
        <div className="body">
          <ErrorState error={q.error} retry={() => void q.refetch()} />
        </div>
      ) : !q.data ? (
        <div className="body">
          <Skeleton lines={2} h={24} />
        </div>
      ) : kernels.length === 0 ? (
        <div className="body stack">
          <span className="dim small">{t('devices.none')}</span>
          <Cli line={`berth session info ${name}`} />
        </div>
      ) : (
        <div className="lines scroll-l">
          {kernels.map((k) => (
            <Fragment key={k.kernelId}>
              {(kernels.length > 1 || k.why) && (
                <div className="stack tight">
                  {kernels.length > 1 && (
                    <strong className="medium small">
                      {k.clusterHostname} <span className="dim">{k.agent}</span>
                    </strong>
                  )}
                  {k.why && <span className="soft small">{k.why}</span>}
                </div>
              )}
              {cardsOf(k).map((d) => (
                <HeldLine key={`${d.slot} ${d.id}`} of={d} />
              ))}
              <BasicsLine of={k} />
            </Fragment>
          ))}
        </div>
      )}
    </Panel>
  )
}

const isBasic = (d: Held) => d.slot === 'cpu' || d.slot === 'mem'
const cardsOf = (k: Kernel) => k.devices.filter((d) => !isBasic(d))

function HeldLine({ of: d }: { of: Held }) {
  const busy = busyWords(d)
  return (
    <div className="stack tight">
      <span className="row">
        <span className="grow cut" title={d.pci}>
          {d.model || slotName(d.slot)} <code title={d.id}>{d.id}</code>
        </span>
        {d.healthy === false && (
          <>
            <StateBadge status="error" plain />
            <span className="small failed">{t('devices.broken')}</span>
          </>
        )}
      </span>
      <span className="row small soft">
        <span className="grow">
          {slotWords(d.slot, d.amount)}
          {d.numa !== undefined && d.numa !== null && ` · ${t('agent.numa', { n: d.numa })}`}
          {(d.healthy === undefined || d.healthy === null) && ` · ${t('devices.unlisted')}`}
        </span>
        <span>{busy || t('agent.device.unmeasured')}</span>
      </span>
    </div>
  )
}

/** How busy a device is, in words; nothing where nothing was measured, which is not the same as idle. */
export function busyWords(d: Pick<Held, 'slot' | 'use'>): string {
  const family = d.slot.replace(/\..*/, '')
  const busy = d.use?.[`${family}_util`]
  const mem = d.use?.[`${family}_mem`]
  return [busy === undefined ? '' : t('agent.device.use', { n: Math.round(busy) }), mem === undefined ? '' : bytes(mem)]
    .filter(Boolean)
    .join(' · ')
}

/** Cores and memory in one line. */
function BasicsLine({ of: k }: { of: Kernel }) {
  const cores = k.devices.filter((d) => d.slot === 'cpu').map((d) => d.id)
  const memory = k.devices.filter((d) => d.slot === 'mem').reduce((n, d) => n + (Number(d.amount) || 0), 0)
  const parts = [cores.length > 0 ? t('devices.cores', { n: cores.length, ids: rangesOf(cores) }) : '', memory > 0 ? bytes(memory) : '']
  const text = parts.filter(Boolean).join(' · ')
  return text ? <div className="small soft">{text}</div> : null
}

/** Ids that are numbers, shorter: 0–3, 8. */
export function rangesOf(ids: string[]): string {
  const out: string[] = []
  for (let i = 0; i < ids.length;) {
    let j = i
    while (j + 1 < ids.length && /^\d+$/.test(ids[j]!) && Number(ids[j + 1]) === Number(ids[j]) + 1) j++
    out.push(i === j ? ids[i]! : `${ids[i]}–${ids[j]}`)
    i = j + 1
  }
  return out.join(', ')
}
