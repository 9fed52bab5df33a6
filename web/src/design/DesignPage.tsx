import { Button, Checkbox, MantineProvider, PasswordInput, Select, Switch, TextInput } from '@mantine/core'
import { useState } from 'react'
import { Problem } from '@/api/http'
import { t } from '@/words'
import { CopyAsMenu } from './CopyAs'
import { Listing } from './DataTable'
import { Icon } from './icons'
import { among, ManyPicker, Picker, type Choices } from './Picker'
import { SearchField } from './SearchField'
import { nonce, theme } from './theme'
import { Views } from './Views'
import {
  Cli,
  ConfirmAction,
  Copy,
  EmptyState,
  ErrorState,
  Facts,
  Id,
  KeyHint,
  Meter,
  PageHead,
  Panel,
  Skeleton,
  StateBadge,
  Swatch,
  toast,
  useTitle,
} from './parts'

const refusal = new Problem(
  400,
  'x/quota',
  'Refused',
  'the session needs 4 CPU, and user ada@example.org may have 1 more; ask for 1 CPU',
  'ask for 1 CPU',
  '81abccdb1bce7c2e',
)
const away = new Problem(
  503,
  'x/away',
  'Away',
  'no manager of the cluster answers; try again in some seconds',
  'try again in some seconds',
  '5e0b3f',
)
const statuses = ['RUNNING', 'PENDING', 'PULLING', 'TERMINATED', 'ERROR']
const colours = [
  'bg',
  'panel',
  'sunken',
  'hover',
  'line',
  'line-strong',
  'ink',
  'ink-2',
  'ink-3',
  'accent',
  'accent-soft',
  'running',
  'waiting',
  'changing',
  'ended',
  'failed',
]

const domains = among(
  'design',
  Array.from({ length: 10_000 }, (_, i) => ({
    value: `d${i}`,
    label: i % 7 ? `domain-${i}` : `${'long-'.repeat(12)}${i}`,
    disabled: i === 3,
  })),
)
/** What pickers of things that are not there show: still read, nothing, and refused. */
const picked: [string, Choices][] = [
  ['Reading', { key: ['design', 'reading'], load: () => new Promise(() => {}) }],
  ['Nothing', among('nothing', [])],
  ['Refused', { key: ['design', 'refused'], load: () => Promise.reject(away) }],
]

/** Every shared part in every state, once light and once dark. */
export function DesignPage() {
  useTitle(t('nav.design'))
  return (
    <div className="page">
      <PageHead title={t('nav.design')} />
      <div className="grid-wide">
        {(['light', 'dark'] as const).map((s) => (
          <MantineProvider
            key={s}
            theme={theme}
            getStyleNonce={nonce}
            forceColorScheme={s}
            cssVariablesSelector={`#design-${s}`}
            getRootElement={() => document.getElementById(`design-${s}`) ?? undefined}>
            <div id={`design-${s}`} data-mantine-color-scheme={s} className="scheme">
              <Sheet of={s} />
            </div>
          </MantineProvider>
        ))}
      </div>
    </div>
  )
}

function Sheet({ of }: { of: string }) {
  const [ask, setAsk] = useState(false)
  const [domain, setDomain] = useState<string | null>('d1')
  const [some, setSome] = useState(['d1', 'd2'])
  const [selected, setSelected] = useState<Set<string>>(new Set(['2']))
  const rows = statuses.map((s, i) => ({
    id: String(i),
    name: [
      'calm-harbor-12',
      'training-run-with-a-very-long-name-that-nobody-can-read-at-once',
      '<script>alert(1)</script>',
      '한국어 이름',
      'x'.repeat(80),
    ][i]!,
    status: s,
  }))
  return (
    <div className="stack wide">
      <div className="row wrap gap-6">
        {colours.map((c) => (
          <span key={c} className="small w-70">
            <Swatch of={c} />
            {c}
          </span>
        ))}
      </div>
      <div className="row wrap">
        {statuses.map((s) => (
          <StateBadge key={s} status={s} />
        ))}
        <StateBadge status="TERMINATED" result="FAILURE" />
        <StateBadge status="TERMINATED" result="SUCCESS" plain />
      </div>
      <div className="row wrap">
        <CopyAsMenu cli="berth session list" api={{ method: 'GET', path: '/folders' }} />
        <SearchField label="Find a session" value={undefined} onFind={() => {}} />
        <Views table={`design-${of}`} now={{ search: {}, hidden: [] }} onOpen={() => {}} />
      </div>
      <div className="row wrap">
        <Button variant="filled">Start session</Button>
        <Button>Rename</Button>
        <Button variant="filled" color="red.8">
          End 3 sessions
        </Button>
        <Button variant="filled" loading>
          Save
        </Button>
        <Button disabled>Not allowed</Button>
        <Button variant="subtle">Back</Button>
      </div>
      <div className="row wrap">
        <button type="button" className="chip" aria-pressed="true">
          Live
        </button>
        <button type="button" className="chip">
          Ended
        </button>
        <span className="tag">tag</span>
        <KeyHint keys="⌘K g s" />
        <Copy text="value">copy</Copy>
        <Id id="5a991f4a-d1e9-415d-9628-cae757944645" />
      </div>
      <div className="row wrap top">
        <TextInput label="Name" defaultValue="calm-harbor-12" />
        <TextInput label="With an error" error="A name has 4 to 64 letters." defaultValue="x" />
        <PasswordInput label="Password" w={180} />
        <Select label="Role" data={['user', 'admin']} defaultValue="user" w={140} comboboxProps={{ withinPortal: false }} />
      </div>
      <div className="row wrap top">
        <Picker label="Domain" of={domains} value={domain} onChange={setDomain} clearable w={200} inPlace />
        {picked.map(([name, choices]) => (
          <Picker key={name} label={name} of={choices} value={null} onChange={() => {}} w={140} inPlace />
        ))}
        <Picker label="Fixed" of={domains} value="d7" name="domain-7" onChange={() => {}} w={140} disabled inPlace />
        <ManyPicker label="Domains" of={domains} value={some} onChange={setSome} className="grow" inPlace />
      </div>
      <div className="row wrap">
        <Switch label="On" defaultChecked />
        <Checkbox label="Checked" defaultChecked />
        <Checkbox label="Not" />
      </div>
      <Cli line="berth run python -c 'print(6*7)'" />
      <Panel title="Meters">
        <div className="stack">
          <Meter slot="cpu" used={1} of={8} label="CPU" />
          <Meter slot="mem" used={15 * 2 ** 30} of={16 * 2 ** 30} label="Memory" />
          <Meter slot="cpu" used={6} of={8} add={4} label="CPU with what would start" />
          <Meter slot="cpu" used={null} of={8} label="Not measured" />
        </div>
      </Panel>
      <Panel title="Facts">
        <Facts
          of={[
            ['Image', 'berth/python:3.11'],
            ['Agents', null],
            ['Command', <code key="c">python3 train.py</code>],
          ]}
        />
      </Panel>
      <div className="panel">
        <Listing
          label={`rows ${of}`}
          columns={[
            { id: 'n', title: 'Name', width: 'minmax(160px, 1fr)', cell: (r) => r.name },
            { id: 's', title: 'Status', width: '140px', cell: (r) => <StateBadge status={r.status} /> },
            { id: 'c', title: 'CPU', width: '60px', num: true, cell: () => '2' },
          ]}
          rows={rows}
          rowKey={(r) => r.id}
          selected={selected}
          onSelect={setSelected}
          bulk={
            <>
              <span>{selected.size} selected</span>
              <Button size="compact-sm">End</Button>
            </>
          }
          empty={null}
        />
      </div>
      <div className="panel">
        <Listing
          label={`loading ${of}`}
          columns={[
            { id: 'n', title: 'Name', width: '1fr', cell: () => '' },
            { id: 's', title: 'Status', width: '140px', cell: () => '' },
          ]}
          rows={undefined as { id: string }[] | undefined}
          rowKey={(r) => r.id}
          empty={null}
        />
      </div>
      <div className="panel">
        <EmptyState
          title="You have no folders"
          text="A folder keeps files beyond the end of sessions."
          action={<Button variant="filled">Create folder</Button>}
          cli="berth folder create data"
        />
      </div>
      <ErrorState error={refusal} what="The session was not started" />
      <ErrorState error={away} retry={() => {}} />
      <div className="note">
        <Icon name="s-waiting" />
        <span>Would wait: it asks for 9 CPU, more than any agent has.</span>
      </div>
      <div className="note info">
        <Icon name="info" />
        <span>The cluster is in maintenance on Sunday from 02:00.</span>
      </div>
      <Panel title="Loading">
        <Skeleton lines={3} />
      </Panel>
      <div className="row">
        <Button onClick={() => setAsk(true)}>Ask</Button>
        <Button onClick={() => toast('2 folders are in the trash.', { label: 'Undo', run: () => {} })}>Toast</Button>
      </div>
      <ConfirmAction
        open={ask}
        onClose={() => setAsk(false)}
        title="Delete 3 folders for good"
        verb="Delete 3 folders"
        doing="Deleting…"
        name="data"
        onDo={() => Promise.reject(refusal)}>
        Deletes 3 folders, 1.2 TiB. This cannot be undone.
      </ConfirmAction>
    </div>
  )
}
