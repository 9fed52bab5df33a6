import { afterEach, expect, test } from 'vitest'
import { slotLine, slotName, slotWords } from '@/design/amounts'
import { setLanguage } from '@/words'
import { isChosen, partsOf } from './parts'

afterEach(() => setLanguage('en'))

test('a GPU that may be shared is chosen in words, and what a choice means is whole or a part, not both', () => {
  const [gpu, ...more] = partsOf(['cpu', 'mem', 'cuda.device', 'cuda.shares'])
  expect(more).toEqual([])
  expect(gpu!.choices.map((c) => c.words)).toEqual(['No GPU', 'a quarter of a GPU', 'half a GPU', 'a whole GPU', '2 GPUs'])
  const half = gpu!.choices[2]!
  expect(half.slots).toEqual({ 'cuda.shares': 0.5, 'cuda.device': 0 })
  expect(isChosen(half, { cpu: 1, 'cuda.shares': 0.5 })).toBe(true)
  expect(isChosen(half, { 'cuda.shares': 0.5, 'cuda.device': 1 })).toBe(false)
  expect(gpu!.choices.filter((c) => isChosen(c, {})).map((c) => c.key)).toEqual(['0'])
  setLanguage('ko')
  expect(partsOf(['cuda.shares'])[0]!.choices.map((c) => c.words)[2]).toBe('GPU 절반')
})

test('where there are shares alone, whole ones are shares; where there are none, there is nothing to choose', () => {
  expect(partsOf(['rocm.shares'])[0]!.choices.map((c) => c.slots)).toEqual([0, 0.25, 0.5, 1, 2].map((n) => ({ 'rocm.shares': n })))
  expect(partsOf(['cpu', 'cuda.device'])).toEqual([])
})

test('amounts are said as people say them, and an instance of a GPU has a name of its own', () => {
  expect(slotLine({ cpu: '2', 'cuda.shares': '0.5', 'cuda.device': '0' })).toBe('2 CPU · half a GPU')
  expect(slotLine({ 'cuda.device': '8', 'cuda.shares': '7.5' })).toBe('8 GPU · 7.5 GPU share')
  expect([slotWords('cuda.shares', '0.3'), slotWords('cuda.shares', 1), slotWords('cuda.device', 2)]).toEqual(['0.3 GPU', '1 GPU', '2 GPU'])
  expect(slotWords('mem', null)).toBe('–')
  expect([slotName('cuda.1g.10gb-mig'), slotName('cuda.device'), slotName('rngd.device')]).toEqual(['GPU 1g.10gb-mig', 'GPU', 'RNGD'])
})
