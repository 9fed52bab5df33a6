// Uses the official client for JavaScript in session mode: logs in, creates a session, lists sessions, ends it, logs out. It prints one
// JSON document. The client counts on a browser; the fetch below keeps cookies as one does.
import { createRequire } from "node:module"

const { Client, ClientConfig } = createRequire(process.env.BERTH_NPM_MODULES + "/")("backend.ai-client/backend.ai-client-node.js")
const [endpoint, user, password] = process.argv.slice(2)
const jar = new Map(), plain = globalThis.fetch
globalThis.navigator ??= { onLine: true }
globalThis.localStorage ??= { getItem: () => null, setItem: () => {}, removeItem: () => {} }
globalThis.fetch = async (url, init) => {
  const headers = new Headers(init.headers)
  headers.delete("Content-Length") // browsers and fetch count themselves
  if (jar.size) headers.set("Cookie", [...jar].map(([k, v]) => `${k}=${v}`).join("; "))
  const bare = ["GET", "HEAD"].includes(init.method) || init.body === ""
  const r = await plain(url, { method: init.method, headers, body: bare ? undefined : init.body, signal: init.signal })
  const set = /^([^=;]+)=([^;]*)(.*)/.exec(r.headers.get("set-cookie") ?? "")
  if (set) /max-age=0/i.test(set[3]) ? jar.delete(set[1]) : jar.set(set[1], set[2])
  return r
}

const wrong = new Client(new ClientConfig(user, "wrong-password", endpoint, "SESSION"), "story")
const refused = await wrong.login()
const client = new Client(new ClientConfig(user, password, endpoint, "SESSION"), "story")
const loggedIn = await client.login()
const created = await client.createIfNotExists("python", "from-npm", { cpu: 1, mem: "256m", group: "default", domain: "default" }, 120000)
const list = await client.computeSession.list(["name", "status"], "RUNNING", "", 10, 0)
await client.destroy("from-npm")
await client.logout()
const after = await client.check_login()
console.log(JSON.stringify({ refused, loggedIn, created, list, after, version: client._managerVersion }))
