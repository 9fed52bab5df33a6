import { t } from '@/words'
import { Button, createTheme, Menu, Modal, Tooltip, type MantineColorsTuple } from '@mantine/core'

// Mantine wants ten shades; what is shown comes from tokens.css by the variables that base.css sets.
const accent: MantineColorsTuple = [
  '#e9effc',
  '#d3def9',
  '#a9bff2',
  '#7c9deb',
  '#587fe4',
  '#426de0',
  '#2f5bd7',
  '#264cb8',
  '#2042a0',
  '#183484',
]

// What Mantine calls dark, from text to the deepest ground; the same values as the dark tokens.
const dark: MantineColorsTuple = [
  '#e8eaee',
  '#b1b8c3',
  '#8d96a3',
  '#69727f',
  '#3c444f',
  '#1e232a',
  '#1b1f25',
  '#16191e',
  '#101216',
  '#0b0d10',
]

export const theme = createTheme({
  primaryColor: 'accent',
  primaryShade: { light: 6, dark: 4 },
  colors: { accent, dark },
  fontFamily: 'var(--b-font)',
  fontFamilyMonospace: 'var(--b-mono)',
  defaultRadius: 6,
  fontSizes: { xs: '12px', sm: '13px', md: '14px', lg: '16px', xl: '20px' },
  headings: { fontWeight: '600' },
  cursorType: 'pointer',
  respectReducedMotion: true,
  components: {
    Button: Button.extend({
      defaultProps: { size: 'compact-md', variant: 'default' },
      styles: { root: { height: 32, paddingInline: 12 }, label: { fontWeight: 500, fontSize: 13 } },
    }),
    Modal: Modal.extend({
      // A function, because the language can change.
      defaultProps: (() => ({
        centered: true,
        overlayProps: { backgroundOpacity: 0.35 },
        transitionProps: { duration: 120 },
        closeButtonProps: { 'aria-label': t('do.close') },
      })) as never,
      styles: { title: { fontWeight: 600, fontSize: 15 } },
    }),
    // The placeholder would take the focus in place of the first item, and is nothing that a menu may hold (ARIA).
    Menu: Menu.extend({ defaultProps: { withInitialFocusPlaceholder: false } }),
    Tooltip: Tooltip.extend({ defaultProps: { openDelay: 350, transitionProps: { duration: 120 } } }),
  },
})

/** The nonce that the page came with; styles that are made at run time need it. */
export function nonce(): string {
  const given = document.querySelector<HTMLMetaElement>('meta[name="csp-nonce"]')?.content ?? ''
  return given.startsWith('{{') ? '' : given
}
