// What an end of a session is to its user: package cluster (end.go) has the same, which a test there compares.

/** Ends that are no news: their user asked for them. */
export const ownEnds = ['user-requested', 'force-terminated', 'user-purged']

/** Reasons with which a session fails although its status does not say so. */
export const failing = [
  'task-failed',
  'task-timeout',
  'failed-to-create',
  'failed-to-start',
  'failed-to-pull',
  'pull-timeout',
  'create-timeout',
  'not-delivered',
  'start-timeout',
  'agent-lost',
  'out-of-memory',
  'disk-full',
  'pending-timeout',
  'dependency-failed',
  'start-unknown',
  'agent-busy',
  'container-crashed',
  'container-not-found',
  'peers-missing',
  'device-lost',
]

export const isOwnEnd = (why: string) => ownEnds.includes(why)

export const isFailedEnd = (s: { status: string; result: string; why: string }) =>
  s.status === 'ERROR' || s.result.toUpperCase() === 'FAILURE' || failing.includes(s.why)
