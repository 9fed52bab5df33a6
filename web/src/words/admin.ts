export const admin = {
  'agent.lost': ['{n} lost', '{n}대 끊김'],
} as const
