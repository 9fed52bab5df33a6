import { bytes, isMemory, slotName } from '@/design/amounts'
import { Panel, StateBadge } from '@/design/parts'
import { t } from '@/words'
import type { Agent } from './queries'

/** The devices of an agent, one by one. What is not measured says so. */
export function Devices({ of: a }: { of: Agent }) {
  const devices = a.hardware.filter((d) => !isMemory(d.Slot))
  if (devices.length === 0) return null
  return (
    <Panel title={t('agent.devices')} body={false}>
      <div className="lines devices">
        {devices.map((d) => {
          const family = d.Slot.replace(/\..*/, '')
          const busy = a.devices[`${family}_util`]?.[d.ID]
          const mem = a.devices[`${family}_mem`]?.[d.ID]
          return (
            <div key={`${d.Slot} ${d.ID}`} className="row">
              <span className="grow cut">
                {slotName(d.Slot)} <code>{d.ID}</code>
              </span>
              <span className="small soft">
                {busy ? t('agent.device.use', { n: Math.round(Number(busy.pct)) }) : t('agent.device.unmeasured')}
                {mem && ` · ${bytes(mem.current)} / ${bytes(mem.capacity)}`}
              </span>
              {d.Healthy ? <span className="small dim">{t('agent.device.well')}</span> : <StateBadge status="error" plain />}
              {!d.Healthy && <span className="small failed">{t('cluster.broken')}</span>}
            </div>
          )
        })}
      </div>
    </Panel>
  )
}
