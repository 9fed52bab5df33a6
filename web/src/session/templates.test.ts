import { expect, test } from 'vitest'
import { blank } from './draft'
import { amountOf, draftOf, templateOf } from './templates'

test('a draft goes into a template and comes out the same', () => {
  const d = {
    ...blank,
    image: 'berth/python:3.11',
    architecture: 'x86_64',
    type: 'batch' as const,
    command: 'python train.py',
    slots: { cpu: 2, mem: 4 * 2 ** 30 },
    group: 'gpu',
    env: [{ name: 'A', value: '1' }],
    mounts: [
      { id: 'f1', name: 'data', target: '' },
      { id: 'f2', name: 'out', target: '/results' },
    ],
  }
  const body = templateOf(d, 'train')
  expect(body.metadata.name).toBe('train')
  expect(body.spec.resources).toEqual({ cpu: '2', mem: '4g' })
  expect(draftOf(body, [{ id: 'f1', name: 'data' }])).toMatchObject({
    image: d.image,
    type: 'batch',
    command: d.command,
    slots: d.slots,
    group: 'gpu',
    env: d.env,
    mounts: [d.mounts[0], { id: 'out', name: 'out', target: '/results' }],
  })
})

test('what a template leaves out is left out', () => {
  expect(templateOf({ ...blank, image: 'x:1' }, 'n').spec).toEqual({ sessionType: 'interactive', kernel: { image: 'x:1' }, resources: {} })
  expect(draftOf({ apiVersion: '6', kind: 'taskTemplate', metadata: { name: 'n' }, spec: { kernel: { image: '' } } }, [])).toMatchObject({
    image: '',
    mounts: [],
  })
})

test('amounts have units', () => {
  expect(['4g', '512m', '2', '1.5', '1GiB', 'x'].map(amountOf)).toEqual([4 * 2 ** 30, 512 * 2 ** 20, 2, 1.5, 2 ** 30, 0])
})
