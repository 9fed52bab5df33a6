import { Select } from '@mantine/core'
import type { UsageSeries } from '@/api/types'
import { isMemory, slotName } from '@/design/amounts'
import { Listing, type Column } from '@/design/DataTable'
import { Bone, EmptyState, Panel } from '@/design/parts'
import { t, type Word } from '@/words'
import { figuresOf, linesOf, stepName, sumOf, type Line, rounded } from './trend'

const figureName = (f: string) => (f === 'cost' ? t('usage.cost') : t(isMemory(f) ? 'usage.gibh' : 'usage.hours', { slot: slotName(f) }))

/** Bars over time. Each says its step and its value. */
function Bars({ values, names, small, label }: { values: number[]; names: string[]; small?: boolean; label: string }) {
  const most = Math.max(...values, 0) || 1
  const height = small ? 20 : 120
  const width = 100 / Math.max(1, values.length)
  return (
    <svg className={`bars${small ? ' small' : ''}`} viewBox={`0 0 100 ${height}`} preserveAspectRatio="none" role="img" aria-label={label}>
      {values.map((v, i) => {
        const h = v > 0 ? Math.max(1, (v / most) * height) : 0
        return (
          <rect key={i} x={i * width + width * 0.1} width={width * 0.8} y={height - h} height={h}>
            {!small && <title>{`${names[i]}: ${rounded(String(v))}`}</title>}
          </rect>
        )
      })}
    </svg>
  )
}

/** Use over time: all together or one, and who held how much. */
export function UsageTrend({
  by,
  series,
  error,
  retry,
  figure,
  one,
  cli,
  set,
}: {
  by: string
  series: UsageSeries | undefined
  error: unknown
  retry: () => void
  figure: string | undefined
  one: string | undefined
  cli: string
  set: (part: { figure?: string | undefined; of?: string | undefined }) => void
}) {
  const figures = series ? figuresOf(series) : []
  const shown = figure && figures.includes(figure) ? figure : (figures[0] ?? 'cpu')
  const lines = series ? linesOf(series, shown) : []
  const chosen = lines.find((l) => l.key === one)
  const names = series?.reports.map((r) => stepName(r, series.step)) ?? []
  const values = chosen ? chosen.values : sumOf(lines, names.length)
  const total = values.reduce((n, v) => n + v, 0)
  const columns: Column<Line>[] = [
    {
      id: 'name',
      title: t(`usage.by.${by}` as Word),
      width: 'minmax(160px, 2fr)',
      cell: (l) => <span title={l.name === l.key ? l.key : `${l.name} (${l.key})`}>{l.name || l.key}</span>,
    },
    ...(by === 'project' || by === 'user'
      ? [{ id: 'domain', title: t('user.domain'), width: '130px', wide: true, cell: (l: Line) => l.domain }]
      : []),
    {
      id: 'over',
      title: t('usage.overtime'),
      width: 'minmax(160px, 1fr)',
      wide: true,
      cell: (l) => <Bars small values={l.values} names={names} label={t('usage.bars', { who: l.name, what: figureName(shown) })} />,
    },
    {
      id: 'total',
      title: figureName(shown),
      width: '140px',
      num: true,
      cell: (l) => (l.known ? rounded(String(l.total)) : <span className="dim">–</span>),
    },
    {
      id: 'part',
      title: t('usage.part'),
      width: '80px',
      num: true,
      wide: true,
      cell: (l) => {
        const all = lines.reduce((n, x) => n + x.total, 0)
        return l.known && all > 0 ? `${Math.round((l.total / all) * 100)} %` : <span className="dim">–</span>
      },
    },
  ]
  return (
    <>
      {!error && (!series || lines.length > 0) && (
        <Panel
          title={chosen ? chosen.name || chosen.key : t('usage.together')}
          acts={
            <Select
              size="xs"
              w={170}
              aria-label={t('usage.figure')}
              data={figures.map((f) => ({ value: f, label: figureName(f) }))}
              value={shown}
              allowDeselect={false}
              onChange={(v) => set({ figure: v && v !== figures[0] ? v : undefined })}
            />
          }>
          {!series ? (
            <Bone h={150} />
          ) : (
            <figure className="trend">
              <Bars
                values={values}
                names={names}
                label={t('usage.bars', { who: chosen?.name ?? t('usage.together'), what: figureName(shown) })}
              />
              <figcaption className="row small dim">
                <span>{names[0]}</span>
                <span className="end">{t('usage.sum', { n: rounded(String(total)), most: rounded(String(Math.max(...values, 0))) })}</span>
                <span className="end">{names[names.length - 1]}</span>
              </figcaption>
            </figure>
          )}
        </Panel>
      )}
      <div className="panel">
        <Listing<Line>
          label={t('usage.overtime')}
          columns={columns}
          rows={series && lines}
          rowKey={(l) => `${l.domain}/${l.key}`}
          error={error}
          retry={retry}
          selected={new Set(chosen ? [`${chosen.domain}/${chosen.key}`] : [])}
          onOpen={(l) => set({ of: l.key === one ? undefined : l.key })}
          empty={<EmptyState title={t('usage.none.period')} cli={cli} />}
        />
      </div>
    </>
  )
}
