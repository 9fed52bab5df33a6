export type State = 'running' | 'waiting' | 'changing' | 'ended' | 'failed'

export const states: Readonly<Record<string, State>> = {
  PENDING: 'waiting',
  SCHEDULED: 'changing',
  PREPARING: 'changing',
  PULLING: 'changing',
  PREPARED: 'changing',
  CREATING: 'changing',
  RESTARTING: 'changing',
  TERMINATING: 'changing',
  RUNNING: 'running',
  TERMINATED: 'ended',
  CANCELLED: 'ended',
  ERROR: 'failed',
  ALIVE: 'running',
  LOST: 'failed',
  LEFT: 'ended',
  CORDONED: 'waiting',
  ready: 'running',
  mounted: 'running',
  performing: 'changing',
  cloning: 'changing',
  'delete-pending': 'ended',
  'delete-ongoing': 'changing',
  'delete-complete': 'ended',
  error: 'failed',
  'delete-error': 'failed',
  active: 'running',
  inactive: 'ended',
  deleted: 'ended',
  'before-verification': 'waiting',
  done: 'running',
  success: 'running',
  denied: 'failed',
  failed: 'failed',
  failure: 'failed',
}

/** Which of the five states a status of the wire belongs to. What is not known is not called running. */
export function stateOf(status: string, result = ''): State {
  if (status === 'TERMINATED' && result.toUpperCase() === 'FAILURE') return 'failed'
  return states[status] ?? states[status.toLowerCase()] ?? 'ended'
}

export function wordOf(status: string, result = ''): string {
  if (status === 'TERMINATED' && result.toUpperCase() === 'FAILURE') return 'FAILED'
  if (status === 'TERMINATED' && result.toUpperCase() === 'SUCCESS') return 'SUCCEEDED'
  return status
}

export const live = ['PENDING', 'SCHEDULED', 'PREPARING', 'PULLING', 'PREPARED', 'CREATING', 'RUNNING', 'RESTARTING', 'TERMINATING']
export const over = ['TERMINATED', 'CANCELLED', 'ERROR']
export const isOver = (status: string) => over.includes(status)
