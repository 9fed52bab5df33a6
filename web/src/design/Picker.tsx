import { Combobox, Input, InputBase, Pill, PillsInput, useCombobox, type ComboboxStore } from '@mantine/core'
import { useDebouncedValue } from '@mantine/hooks'
import { keepPreviousData, useInfiniteQuery } from '@tanstack/react-query'
import { useEffect, useId, useRef, useState, type ReactNode } from 'react'
import { t } from '@/words'
import { Icon } from './icons'
import type { Page } from './paged'
import { Bone } from './parts'

export interface Choice {
  /** What is kept. */
  value: string
  /** What people read. */
  label: string
  /** Why it cannot be chosen now. */
  disabled?: boolean
}

/** Where choices come from: a page of those that hold a text. Each noun has its own, in its `queries.ts`. */
export interface Choices {
  key: readonly unknown[]
  load: (q: string, limit: number, offset: number, signal: AbortSignal) => Promise<Page<Choice>>
}

/** How many choices are read at once. */
export const atOnce = 20

/** Choices of a list that is here already, because it is short or the page reads it anyway. */
export function among(name: string, all: readonly (string | Choice)[]): Choices {
  const choices = all.map((c) => (typeof c === 'string' ? { value: c, label: c } : c))
  // The key tells one list from another without holding it (FNV-1a).
  let sum = 0x811c9dc5
  for (const c of choices)
    for (const text of [c.value, c.label, c.disabled ? '-' : '+'])
      for (let i = 0; i < text.length; i++) sum = Math.imul(sum ^ text.charCodeAt(i), 0x01000193)
  return {
    key: ['among', name, choices.length, sum],
    load: (q, limit, offset) => {
      const found = choices.filter((c) => c.label.toLowerCase().includes(q.toLowerCase()))
      return Promise.resolve({ items: found.slice(offset, offset + limit), total: found.length })
    },
  }
}

// What the last line of a list does besides. No value of a choice begins with this character.
const more = '\0more'
const retry = '\0retry'

/** What the server finds for what is typed, page after page, while the list is open. */
function useFound(of: Choices, typed: string, open: boolean) {
  const [q] = useDebouncedValue(typed.trim(), 200)
  const query = useInfiniteQuery({
    queryKey: [...of.key, 'choices', q],
    enabled: open,
    staleTime: 30_000,
    // Names stay where they are while the next ones are looked for.
    placeholderData: keepPreviousData,
    retry: false,
    initialPageParam: 0,
    queryFn: ({ pageParam, signal }) => of.load(q, atOnce, pageParam, signal),
    getNextPageParam: (last, pages) => {
      const so = pages.reduce((n, p) => n + p.items.length, 0)
      return last.items.length > 0 && so < last.total ? so : undefined
    },
  })
  const items = query.data?.pages.flatMap((p) => p.items) ?? []
  return {
    items,
    total: query.data?.pages[0]?.total,
    error: query.error,
    searching: q !== typed.trim() || query.isPlaceholderData,
    hasMore: query.hasNextPage && !query.isPlaceholderData,
    fetchingMore: query.isFetchingNextPage,
    next: () => {
      if (query.hasNextPage && !query.isFetching) void query.fetchNextPage({ cancelRefetch: false })
    },
    again: () => void (items.length ? query.fetchNextPage() : query.refetch()),
  }
}
type Found = ReturnType<typeof useFound>

/** Which line the keys are at, when lines come and go. */
function useMarked(store: ComboboxStore, found: Found, typed: string) {
  const n = found.items.length
  const from = useRef<number | null>(null)
  const shown = store.dropdownOpened && !found.searching
  // What is typed marks the first that matches, so that Enter takes it.
  useEffect(() => {
    if (shown && typed.trim() && n > 0) store.selectFirstOption()
    // Only new results move the mark.
  }, [shown, typed.trim(), found.items[0]?.value])
  // Whoever asked for more by a key goes on with the first that came.
  useEffect(() => {
    if (from.current !== null && n > from.current) {
      store.selectOption(from.current)
      from.current = null
    }
  }, [n])
  return () => {
    from.current = n
  }
}

function Dropdown({
  found,
  chosen,
  labelledBy,
  label,
}: {
  found: Found
  chosen: readonly string[]
  labelledBy: string | undefined
  label: string | undefined
}) {
  const { items, total } = found
  return (
    <Combobox.Dropdown className="picker">
      {found.error && (
        <p role="alert" className="small bad pad-line">
          {found.error.message}
        </p>
      )}
      <Combobox.Options
        {...(labelledBy ? { labelledBy } : { 'aria-label': label })}
        aria-busy={found.searching || found.fetchingMore || (total === undefined && !found.error)}
        mah={260}
        className="scrolls"
        onScroll={(e) => {
          // The next ones come before the end is seen.
          const { scrollTop, clientHeight, scrollHeight } = e.currentTarget
          if (scrollTop + clientHeight > scrollHeight - 100) found.next()
        }}>
        {items.map((c) => {
          const is = chosen.includes(c.value)
          return (
            <Combobox.Option
              key={c.value}
              value={c.value}
              active={is}
              aria-selected={is}
              disabled={!!c.disabled}
              className="choice row"
              title={c.label}>
              <span className="cut grow">{c.label}</span>
              {is && <Icon name="check" size={14} />}
            </Combobox.Option>
          )
        })}
        {found.error ? (
          <Combobox.Option key={retry} value={retry} aria-selected={false}>
            {t('do.retry')}
          </Combobox.Option>
        ) : (
          found.hasMore && (
            <Combobox.Option key={more} value={more} aria-selected={false} className="soft">
              {found.fetchingMore ? t('picker.reading') : t('picker.more', { n: ((total ?? 0) - items.length).toLocaleString() })}
            </Combobox.Option>
          )
        )}
      </Combobox.Options>
      {found.error ? null : total === undefined ? (
        <div className="pad-line stack tight" role="status" aria-label={t('picker.reading')}>
          <Bone w="70%" h={12} />
          <Bone w="50%" h={12} />
          <Bone w="60%" h={12} />
        </div>
      ) : (
        total === 0 && (
          <p role="status" className="small soft pad-line">
            {t('find.none')}
          </p>
        )
      )}
    </Combobox.Dropdown>
  )
}

interface Common {
  of: Choices
  label?: string
  'aria-label'?: string
  placeholder?: string
  description?: ReactNode
  size?: 'xs' | 'sm'
  w?: number
  className?: string
  disabled?: boolean
  /** Stays where it is drawn; the design page needs it. */
  inPlace?: boolean
}

/**
 * One of many: the server searches, twenty are read at once, and the next ones when the end of the list is near. What is chosen stays shown,
 * also when no search finds it.
 */
export function Picker(
  p: Common & {
    value: string | null
    onChange: (value: string | null, choice: Choice | null) => void
    /** How the value is called, where that is not the value itself. */
    name?: string | undefined
    clearable?: boolean
    required?: boolean
    /** Whether a dialog begins here. */
    autofocus?: boolean
  },
) {
  const [typed, setTyped] = useState('')
  const id = useId()
  const store = useCombobox({
    onDropdownClose: () => {
      setTyped('')
      store.resetSelectedOption()
    },
  })
  const open = store.dropdownOpened
  const found = useFound(p.of, typed, open)
  const marked = useMarked(store, found, typed)
  const known = useRef(new Map<string, string>())
  for (const c of found.items) known.current.set(c.value, c.label)
  const name = p.value === null ? '' : (p.name ?? known.current.get(p.value) ?? p.value)
  return (
    <Combobox
      store={store}
      withinPortal={!p.inPlace}
      {...(p.size ? { size: p.size } : {})}
      onOptionSubmit={(v) => {
        if (v === retry) return found.again()
        if (v === more) {
          marked()
          return found.next()
        }
        if (v !== p.value) p.onChange(v, found.items.find((c) => c.value === v) ?? null)
        store.closeDropdown()
      }}>
      <Combobox.Target withExpandedAttribute>
        <InputBase
          {...(p.label ? { label: p.label } : {})}
          {...(p['aria-label'] ? { 'aria-label': p['aria-label'] } : {})}
          {...(p.description ? { description: p.description } : {})}
          {...(p.size ? { size: p.size } : {})}
          {...(p.w ? { w: p.w } : {})}
          {...(p.className ? { className: p.className } : {})}
          labelProps={{ id }}
          required={!!p.required}
          {...(p.autofocus ? { 'data-autofocus': true } : {})}
          disabled={!!p.disabled}
          type="text"
          autoComplete="off"
          spellCheck={false}
          placeholder={open && name ? name : p.placeholder}
          value={open ? typed : name}
          rightSection={
            p.clearable && p.value !== null ? (
              <Input.ClearButton size="sm" aria-label={t('picker.clear')} onClick={() => p.onChange(null, null)} />
            ) : (
              <Combobox.Chevron />
            )
          }
          rightSectionPointerEvents={p.clearable && p.value !== null ? 'all' : 'none'}
          onClick={() => store.openDropdown()}
          onFocus={(e) => e.currentTarget.select()}
          onKeyDown={(e) => {
            // What is typed is a search: a form is not sent with it.
            if (e.key === 'Enter' && open) e.preventDefault()
          }}
          onBlur={() => {
            // Who wrote a whole name has chosen it.
            const whole = typed.trim().toLowerCase()
            const meant =
              open && whole ? found.items.find((c) => !c.disabled && [c.value, c.label].some((x) => x.toLowerCase() === whole)) : null
            if (meant && meant.value !== p.value) p.onChange(meant.value, meant)
            store.closeDropdown()
          }}
          onChange={(e) => {
            setTyped(e.currentTarget.value)
            store.resetSelectedOption()
            store.openDropdown()
          }}
        />
      </Combobox.Target>
      <Dropdown found={found} chosen={p.value === null ? [] : [p.value]} labelledBy={p.label ? id : undefined} label={p['aria-label']} />
    </Combobox>
  )
}

/** Some of many; what is chosen stands in the field. */
export function ManyPicker(
  p: Common & { value: readonly string[]; onChange: (value: string[]) => void; names?: ReadonlyMap<string, string> },
) {
  const [typed, setTyped] = useState('')
  const id = useId()
  const store = useCombobox({
    onDropdownClose: () => {
      setTyped('')
      store.resetSelectedOption()
    },
  })
  const found = useFound(p.of, typed, store.dropdownOpened)
  const marked = useMarked(store, found, typed)
  const known = useRef(new Map<string, string>())
  for (const c of found.items) known.current.set(c.value, c.label)
  const nameOf = (v: string) => p.names?.get(v) ?? known.current.get(v) ?? v
  const without = (v: string) => p.onChange(p.value.filter((x) => x !== v))
  return (
    <Combobox
      store={store}
      withinPortal={!p.inPlace}
      onOptionSubmit={(v) => {
        if (v === retry) return found.again()
        if (v === more) {
          marked()
          return found.next()
        }
        if (p.value.includes(v)) without(v)
        else p.onChange([...p.value, v])
        setTyped('')
      }}>
      <Combobox.DropdownTarget>
        <PillsInput
          {...(p.label ? { label: p.label } : {})}
          {...(p.description ? { description: p.description } : {})}
          {...(p.size ? { size: p.size } : {})}
          {...(p.className ? { className: p.className } : {})}
          id={`${id}field`}
          labelProps={{ id }}
          disabled={!!p.disabled}
          rightSection={<Combobox.Chevron />}
          rightSectionPointerEvents="none"
          onClick={() => store.openDropdown()}>
          <Pill.Group>
            {p.value.map((v) => (
              <Pill
                key={v}
                withRemoveButton
                removeButtonProps={{ 'aria-label': t('do.remove.what', { what: nameOf(v) }), 'aria-hidden': false }}
                onRemove={() => without(v)}>
                {nameOf(v)}
              </Pill>
            ))}
            <Combobox.EventsTarget withExpandedAttribute>
              <PillsInput.Field
                id={`${id}field`}
                {...(p['aria-label'] ? { 'aria-label': p['aria-label'] } : {})}
                placeholder={p.value.length ? undefined : p.placeholder}
                value={typed}
                spellCheck={false}
                onBlur={() => store.closeDropdown()}
                onChange={(e) => {
                  setTyped(e.currentTarget.value)
                  store.resetSelectedOption()
                  store.openDropdown()
                }}
                onKeyDown={(e) => {
                  if (e.key === 'Enter' && store.dropdownOpened) e.preventDefault()
                  const last = p.value[p.value.length - 1]
                  if (e.key === 'Backspace' && typed === '' && last !== undefined) {
                    e.preventDefault()
                    without(last)
                  }
                }}
              />
            </Combobox.EventsTarget>
          </Pill.Group>
        </PillsInput>
      </Combobox.DropdownTarget>
      <Dropdown found={found} chosen={p.value} labelledBy={p.label ? id : undefined} label={p['aria-label']} />
    </Combobox>
  )
}
