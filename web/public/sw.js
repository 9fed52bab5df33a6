// Keeps the files of the console that are named by their content, so that it opens at once. Everything else goes to the server as if this
// were not here: pages, logins, answers of the API, files of other origins.

const store = 'berth-assets-1'
const most = 200

/** Whether an address is a file that never changes. */
function kept(url, origin) {
  return url.origin === origin && url.pathname.startsWith('/assets/') && url.search === ''
}

self.addEventListener('install', () => self.skipWaiting())

self.addEventListener('activate', (e) => {
  e.waitUntil(
    (async () => {
      for (const name of await caches.keys()) if (name !== store) await caches.delete(name)
      await self.clients.claim()
    })(),
  )
})

self.addEventListener('fetch', (e) => {
  const r = e.request
  if (r.method !== 'GET' || !kept(new URL(r.url), self.location.origin)) return
  e.respondWith(
    (async () => {
      const cache = await caches.open(store)
      const found = await cache.match(r)
      if (found) return found
      const got = await fetch(r)
      // Only a whole file is kept that the server calls unchangeable: one of an earlier version is answered with 404, and files of another web
      // interface at this address may change.
      if (got.status === 200 && got.type === 'basic' && /immutable/.test(got.headers.get('Cache-Control') ?? '')) {
        await cache.put(r, got.clone())
        const all = await cache.keys()
        for (const old of all.slice(0, Math.max(0, all.length - most))) await cache.delete(old)
      }
      return got
    })(),
  )
})
