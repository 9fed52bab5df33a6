import { Tooltip } from '@mantine/core'
import { Link } from '@tanstack/react-router'
import { useState } from 'react'
import type { AgentSession } from '@/api/types'
import { bytes, slotName } from '@/design/amounts'
import { Fill, Panel, StateBadge } from '@/design/parts'
import { t, tAny } from '@/words'
import type { Agent, Device } from './queries'
import { cardsOf, joinedOf, socketsOf, type Card, type Held, type Socket } from './topology'

/**
 * A machine as it is built: NUMA nodes with their cores, memory and devices, the links between devices, and who holds what. A session that
 * is chosen shows where it is. What is not measured says so.
 */
export function Devices({ of: a, sessions }: { of: Agent; sessions: AgentSession[] }) {
  const [chosen, setChosen] = useState<string | null>(null)
  const sockets = socketsOf(a, sessions)
  const links = joinedOf(a, cardsOf(a, sessions))
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
      {/* It scrolls, by the keys too. */}
      <div className="sockets" role="group" aria-label={t('agent.devices')} tabIndex={0}>
        {sockets.map((s) => (
          <SocketBox key={s.numa} of={s} agent={a} chosen={chosen} alone={sockets.length === 1} />
        ))}
      </div>
      {links.length > 0 && (
        <ul className="links small" aria-label={t('agent.links')}>
          {links.slice(0, mostLinks).map((l) => (
            <li key={l.way + l.cards.map((c) => c.label).join()} className="row wrap">
              <span className={`link ${l.way}`} aria-hidden="true" />
              <span className="soft">{t(`agent.link.${l.way}`)}</span>
              <span>{l.cards.map((c) => c.label).join(' – ')}</span>
            </li>
          ))}
          {links.length > mostLinks && <li className="dim">{t('agent.links.more', { n: links.length - mostLinks })}</li>}
        </ul>
      )}
    </Panel>
  )
}

/** More lines of links than these tell nothing to people; the command line draws all. */
const mostLinks = 48

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

/** Who holds something, each a link to the session. */
function Holders({ of: h }: { of: Held }) {
  if (h.holders.length === 0) return t('agent.device.free')
  return h.holders.map((x, i) => (
    <span key={x.session.id}>
      {i > 0 && ', '}
      <Link to="/sessions/$id" params={{ id: x.session.id }} title={x.session.user_email}>
        {x.session.name}
      </Link>
      {x.part < 1 && ` (${Math.round(x.part * 100)} %)`}
    </span>
  ))
}

/** An accelerator: what it is, who holds it, how busy it is, whether it is well, and if not, why. */
function DeviceLine({ of: h, agent: a, mine }: { of: Card; agent: Agent; mine: boolean }) {
  const d: Device = h.device
  const family = d.Slot.replace(/\..*/, '')
  const busy = a.devices[`${family}_util`]?.[d.ID]
  const mem = a.devices[`${family}_mem`]?.[d.ID]
  const about = [
    d.Memory ? bytes(d.Memory) : '',
    d.PCI,
    h.slots.map(slotName).join(', '),
    d.Isolation ? tAny(`isolation.${d.Isolation}`, d.Isolation) : '',
  ].filter(Boolean)
  return (
    <div className={`device${mine ? ' mine' : ''}`}>
      <span className="row">
        <span className="grow cut">
          <strong className="medium">{h.label}</strong> {d.Model} <code title={d.ID}>{d.ID}</code>
        </span>
        {h.healthy ? <span className="small dim">{t('agent.device.well')}</span> : <StateBadge status="error" plain />}
        {!h.healthy && <span className="small failed">{t('cluster.broken')}</span>}
      </span>
      {!h.healthy && <div className="small bad">{h.problem || t('agent.device.noproblem')}</div>}
      <div className="small dim">{about.join(' · ')}</div>
      <span className="row small soft">
        <span className="grow">{!h.healthy && h.holders.length === 0 ? t('agent.device.unusable') : <Holders of={h} />}</span>
        <span>
          {busy ? t('agent.device.use', { n: Math.round(Number(busy.pct)) }) : t('agent.device.unmeasured')}
          {mem && ` · ${bytes(mem.current)} / ${bytes(mem.capacity)}`}
        </span>
      </span>
    </div>
  )
}
