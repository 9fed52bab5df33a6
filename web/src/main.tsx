import { localStorageColorSchemeManager, MantineProvider } from '@mantine/core'
import '@mantine/core/styles.css'
import { QueryClientProvider } from '@tanstack/react-query'
import { RouterProvider } from '@tanstack/react-router'
import { setNonce } from 'get-nonce'
import { StrictMode } from 'react'
import { createRoot } from 'react-dom/client'
import { newClient } from '@/api/client'
import '@/design/tokens.css'
import '@/design/base.css'
import '@/design/place.css'
import { nonce, theme } from '@/design/theme'
import { Gate } from '@/shell/Gate'
import { router } from '@/shell/router'
import { keepAssets, reloadWhenReplaced } from '@/shell/versions'
import '@/shell/shell.css'
import { currentLanguage } from '@/words'

// The part that keeps the page from scrolling behind a question makes a style of its own.
if (nonce()) setNonce(nonce())
document.documentElement.lang = currentLanguage()
reloadWhenReplaced()
if (import.meta.env.PROD) keepAssets()

createRoot(document.getElementById('root')!).render(
  <StrictMode>
    <MantineProvider
      theme={theme}
      defaultColorScheme="auto"
      getStyleNonce={nonce}
      colorSchemeManager={localStorageColorSchemeManager({ key: 'berth.theme' })}>
      <QueryClientProvider client={newClient()}>
        <Gate>
          <RouterProvider router={router} />
        </Gate>
      </QueryClientProvider>
    </MantineProvider>
  </StrictMode>,
)
