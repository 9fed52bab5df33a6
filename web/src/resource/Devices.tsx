import { Tooltip } from '@mantine/core'
import { useState } from 'react'
import type { AgentSession } from '@/api/types'
import { bytes, slotName } from '@/design/amounts'
import { Fill, Panel, StateBadge } from '@/design/parts'
import { t } from '@/words'
import type { Agent, Device } from './queries'
import { linksOf, socketsOf, type Held, type Socket } from './topology'

/**
 * A machine as it is built: NUMA nodes with their cores, memory and devices, the links between devices, and who holds what. A session that
 * is chosen shows where it is. What is not measured says so.
 */
export function Devices({ of: a, sessions }: { of: Agent; sessions: AgentSession[] }) {
  const [chosen, setChosen] = useState<string | null>(null)
  const sockets = socketsOf(a, sessions)
  const links = linksOf(a)
  const holding = sessions.filter((s) => Object.keys(s.devices ?? {}).length > 0)
  if (sockets.length === 0) return null
  return (
    <Panel title={t('agent.devices')} body={false}>
      {holding.length > 0 && (
        <div className="row wrap pad-line line-below" role="group" aria-label={t('agent.holders')}>
          {holding.map((s) => (
            <button
              key={s.id}
              type="button"
              className="chip"
              aria-pressed={chosen === s.id}
              title={s.user_email}
              onClick={() => setChosen(chosen === s.id ? null : s.id)}>
              {s.name}
            </button>
          ))}
        </div>
      )}
      <div className="sockets">
        {sockets.map((s) => (
          <SocketBox key={s.numa} of={s} agent={a} chosen={chosen} alone={sockets.length === 1} />
        ))}
      </div>
      {links.length > 0 && (
        <ul className="links small" aria-label={t('agent.links')}>
          {links.map((l) => (
            <li key={`${l.from.ID} ${l.to.ID}`} className="row">
              <code>{l.from.ID}</code>
              <span className={`link d${l.distance}`} aria-hidden="true" />
              <code>{l.to.ID}</code>
              <span className="soft">{wordOf(l.distance)}</span>
            </li>
          ))}
        </ul>
      )}
    </Panel>
  )
}

const wordOf = (distance: number) => t(distance <= 1 ? 'agent.link.card' : distance <= 2 ? 'agent.link.direct' : 'agent.link.switch')

function SocketBox({ of: s, agent, chosen, alone }: { of: Socket; agent: Agent; chosen: string | null; alone: boolean }) {
  const busy = s.cores.filter((c) => c.part > 0).length
  return (
    <section className="socket stack tight" aria-label={nameOf(s)}>
      {!alone && <strong className="small strong">{nameOf(s)}</strong>}
      {s.cores.length > 0 && (
        <>
          <span className="small soft">{t('agent.cores', { n: busy, of: s.cores.length })}</span>
          <span className="cells" role="img" aria-label={t('agent.cores', { n: busy, of: s.cores.length })}>
            {s.cores.map((c) => (
              <Tooltip key={c.device.ID} label={`${slotName(c.device.Slot)} ${c.device.ID}: ${holdersOf(c)}`}>
                <i className={`${!c.device.Healthy ? 'bad' : c.part > 0 ? 'on' : ''}${holds(c, chosen) ? ' mine' : ''}`} />
              </Tooltip>
            ))}
          </span>
        </>
      )}
      {s.memory.map((m) => (
        <span key={m.device.ID} className="stack tight" title={holdersOf(m)}>
          <span className="row small">
            <span className="soft grow">{slotName(m.device.Slot)}</span>
            <span>
              {bytes((m.part * m.device.Capacity) / 1000)} <span className="dim">/ {bytes(m.device.Capacity / 1000)}</span>
            </span>
          </span>
          <span className={`meter${holds(m, chosen) ? ' mine' : ''}`}>
            <Fill part={m.part} />
          </span>
        </span>
      ))}
      {s.others.map((d) => (
        <DeviceLine key={`${d.device.Slot} ${d.device.ID}`} of={d} agent={agent} mine={holds(d, chosen)} />
      ))}
    </section>
  )
}

const nameOf = (s: Socket) => (s.numa < 0 ? t('agent.numa.unknown') : t('agent.numa', { n: s.numa }))
const holds = (h: Held, session: string | null) => h.holders.some((x) => x.session.id === session)
const holdersOf = (h: Held) =>
  h.holders.map((x) => `${x.session.name}${x.part < 1 ? ` (${Math.round(x.part * 100)} %)` : ''}`).join(', ') || t('agent.device.free')

/** An accelerator: what it is, who holds it, how busy it is, whether it is well. */
function DeviceLine({ of: h, agent: a, mine }: { of: Held; agent: Agent; mine: boolean }) {
  const d: Device = h.device
  const family = d.Slot.replace(/\..*/, '')
  const busy = a.devices[`${family}_util`]?.[d.ID]
  const mem = a.devices[`${family}_mem`]?.[d.ID]
  return (
    <div className={`device${mine ? ' mine' : ''}`} title={d.PCI}>
      <span className="row">
        <span className="grow cut">
          {d.Model || slotName(d.Slot)} <code>{d.ID}</code>
        </span>
        {d.Healthy ? <span className="small dim">{t('agent.device.well')}</span> : <StateBadge status="error" plain />}
        {!d.Healthy && <span className="small failed">{t('cluster.broken')}</span>}
      </span>
      <span className="row small soft">
        <span className="grow cut" title={holdersOf(h)}>
          {holdersOf(h)}
        </span>
        <span>
          {busy ? t('agent.device.use', { n: Math.round(Number(busy.pct)) }) : t('agent.device.unmeasured')}
          {mem && ` · ${bytes(mem.current)} / ${bytes(mem.capacity)}`}
        </span>
      </span>
    </div>
  )
}
