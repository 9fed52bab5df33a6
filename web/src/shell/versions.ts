// A page of an earlier version asks for a file that the server has no more: it is loaded again, once in a while only, so that a server
// whose files are broken does not make the page load for ever.

const key = 'berth.reloaded'
const pause = 60_000

/** Reports whether a page that misses a file of its version may load itself again now. */
export function mayReload(store: Pick<Storage, 'getItem' | 'setItem'>, now: number): boolean {
  const last = Number(store.getItem(key) ?? 0)
  if (now - last < pause) return false
  store.setItem(key, String(now))
  return true
}

export function reloadWhenReplaced() {
  window.addEventListener('vite:preloadError', (e) => {
    if (!mayReload(sessionStorage, Date.now())) return
    e.preventDefault()
    location.reload()
  })
}

/** Has the browser keep files that never change, and offer to install the console. What it may keep, public/sw.js says. */
export function keepAssets() {
  if (!('serviceWorker' in navigator) || !window.isSecureContext) return
  window.addEventListener('load', () => void navigator.serviceWorker.register('/sw.js').catch(() => {}))
}
