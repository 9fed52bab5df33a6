import react from '@vitejs/plugin-react'
import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitest/config'

// The cluster that the development server shows: BERTH_WEB=http://127.0.0.1:PORT npm run dev
const cluster = process.env.BERTH_WEB ?? 'http://127.0.0.1:8080'
const proxied = { target: cluster, changeOrigin: true, ws: true, headers: { origin: cluster } }

export default defineConfig({
  plugins: [react()],
  resolve: { alias: { '@': fileURLToPath(new URL('./src', import.meta.url)) } },
  server: { proxy: { '/server': proxied, '/func': proxied, '/config.toml': proxied } },
  build: {
    target: 'es2022',
    // Small files stay files: the policy allows images of this server, and the address of each says what it is.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 900,
  },
  test: {
    environment: 'jsdom',
    include: ['src/**/*.test.{ts,tsx}'],
    setupFiles: ['test/setup.ts'],
    testTimeout: 60_000,
    pool: 'threads',
    poolOptions: { threads: { singleThread: true } },
  },
})
