import { admin } from './admin'
import { administer } from './administer'
import { common } from './common'
import { data } from './data'
import { sessions } from './sessions'
import { user } from './user'

/** Every text of the console, in English and Korean. There is no other place for words. */
export const catalogue = { ...common, ...sessions, ...data, ...user, ...admin, ...administer } as const satisfies Record<
  string,
  readonly [string, string]
>
