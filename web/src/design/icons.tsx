import type { ReactNode } from 'react'

// One set of icons: 16 px, one weight of line. An icon never stands without a word or a label.
const paths: Record<string, ReactNode> = {
  home: <path d="M2.5 7.5 8 3l5.5 4.5V13a.5.5 0 0 1-.5.5H9.5V9.5h-3v4H3a.5.5 0 0 1-.5-.5z" />,
  sessions: (
    <>
      <rect x="2.5" y="3" width="11" height="4" rx="1" />
      <rect x="2.5" y="9" width="11" height="4" rx="1" />
      <path d="M5 5h.01M5 11h.01" />
    </>
  ),
  folder: <path d="M2 12V4.5a1 1 0 0 1 1-1h3l1.5 1.5H13a1 1 0 0 1 1 1V12a1 1 0 0 1-1 1H3a1 1 0 0 1-1-1z" />,
  file: <path d="M4 2.5h5L12.5 6v7a.5.5 0 0 1-.5.5H4a.5.5 0 0 1-.5-.5V3a.5.5 0 0 1 .5-.5zM9 2.5V6h3.5" />,
  image: (
    <>
      <path d="m8 2 5.5 3v6L8 14l-5.5-3V5z" />
      <path d="M2.5 5 8 8l5.5-3M8 8v6" />
    </>
  ),
  cluster: (
    <>
      <rect x="2.5" y="2.5" width="4.5" height="4.5" rx="1" />
      <rect x="9" y="2.5" width="4.5" height="4.5" rx="1" />
      <rect x="2.5" y="9" width="4.5" height="4.5" rx="1" />
      <rect x="9" y="9" width="4.5" height="4.5" rx="1" />
    </>
  ),
  users: (
    <>
      <circle cx="6" cy="5.5" r="2.5" />
      <path d="M1.5 13.5c0-2.5 2-4 4.5-4s4.5 1.5 4.5 4M11 3.5a2.2 2.2 0 0 1 0 4.2M12.5 9.8c1.3.6 2 1.900 2 3.7" />
    </>
  ),
  policy: <path d="M8 2 3 4v4c0 3 2 5 5 6 3-1 5-3 5-6V4z" />,
  audit: <path d="M4 2.500h8v11H4zM6 5.500h4M6 8h4M6 10.500h2.500" />,
  usage: <path d="M2.5 13.500h11M4.500 11V8M8 11V3.500M11.500 11V6" />,
  settings: <path d="M2.500 4.500h6M11.500 4.500h2M2.500 11.500h2M7.500 11.500h6M10 3v3M6 10v3" />,
  user: (
    <>
      <circle cx="8" cy="5.500" r="2.500" />
      <path d="M3 13.500c0-2.500 2.200-4 5-4s5 1.500 5 4" />
    </>
  ),
  search: (
    <>
      <circle cx="7" cy="7" r="4" />
      <path d="m10 10 3.500 3.500" />
    </>
  ),
  offer: <path d="M2.500 8V3h5.300L14 9.200 9.300 13.900zM5.300 5.800h.01" />,
  plus: <path d="M8 3v10M3 8h10" />,
  close: <path d="m4 4 8 8M12 4l-8 8" />,
  copy: (
    <>
      <rect x="5.500" y="5.500" width="8" height="8" rx="1" />
      <path d="M3.500 10.500h-1v-8h8v1" />
    </>
  ),
  check: <path d="m3 8.500 3.500 3.500L13 4.500" />,
  more: <path d="M3.500 8h.01M8 8h.01M12.500 8h.01" strokeWidth="2.200" />,
  chevron: <path d="m6 3.500 4.500 4.500L6 12.500" />,
  down: <path d="m3.500 6 4.500 4.500L12.500 6" />,
  up: <path d="m3.500 10 4.500-4.500L12.500 10" />,
  open: <path d="M9.500 2.500h4v4M13.500 2.500 8 8M7 3.500H3.500a1 1 0 0 0-1 1v8a1 1 0 0 0 1 1h8a1 1 0 0 0 1-1V9" />,
  terminal: (
    <>
      <rect x="2" y="3" width="12" height="10" rx="1" />
      <path d="m4.500 6 2 2-2 2M8.500 10h3" />
    </>
  ),
  download: <path d="M8 2.500v7.500M4.500 7 8 10.500 11.500 7M2.500 13.500h11" />,
  upload: <path d="M8 10.500V3M4.500 6 8 2.500 11.500 6M2.500 13.500h11" />,
  trash: <path d="M3 4.500h10M6 4.500V3h4v1.500M4.500 4.500l.5 9h6l.5-9" />,
  share: (
    <>
      <circle cx="4" cy="8" r="1.800" />
      <circle cx="12" cy="4" r="1.800" />
      <circle cx="12" cy="12" r="1.800" />
      <path d="m5.600 7.200 4.800-2.400M5.600 8.800l4.800 2.400" />
    </>
  ),
  edit: <path d="m3 13 .5-3L10.500 3 13 5.500 6 12.500z" />,
  warn: <path d="M8 2.500 14 13H2zM8 6.500v3M8 11.300h.01" />,
  info: (
    <>
      <circle cx="8" cy="8" r="5.500" />
      <path d="M8 7.500v3.500M8 5.200h.01" />
    </>
  ),
  bell: <path d="M4 11V7a4 4 0 0 1 8 0v4l1 1H3zM6.500 13.500h3" />,
  sun: (
    <>
      <circle cx="8" cy="8" r="2.800" />
      <path d="M8 1.500v1.500M8 13v1.500M1.500 8H3M13 8h1.500M3.400 3.400l1 1M11.600 11.600l1 1M12.600 3.400l-1 1M4.400 11.600l-1 1" />
    </>
  ),
  fold: (
    <>
      <rect x="2.500" y="3" width="11" height="10" rx="1" />
      <path d="M6 3v10" />
    </>
  ),
  menu: <path d="M2.500 4.500h11M2.500 8h11M2.500 11.500h11" />,
  refresh: <path d="M13 5.500A5.500 5.500 0 1 0 13.500 9M13.500 2.500v3h-3" />,
  play: <path d="M5 3.500v9l7.500-4.500z" />,
  stop: <rect x="4" y="4" width="8" height="8" rx="1" />,
  key: (
    <>
      <circle cx="5" cy="11" r="2.500" />
      <path d="m7 9.200 6-6M10.500 5.500l2 2" />
    </>
  ),
  // The shapes of the five states differ without their colours.
  's-running': <circle cx="8" cy="8" r="4" fill="currentColor" stroke="none" />,
  's-waiting': (
    <>
      <circle cx="8" cy="8" r="5" />
      <path d="M8 5.200V8l2 1.500" />
    </>
  ),
  's-changing': <path d="M13 8a5 5 0 1 1-2-4" />,
  's-ended': <rect x="4" y="4" width="8" height="8" rx="1" />,
  's-failed': <path d="M8 2.800 13.800 13H2.200zM8 6.800v2.700M8 11.300h.01" />,
}

export type IconName = keyof typeof paths

export function Icon({ name, size = 16 }: { name: string; size?: number }) {
  return (
    <svg
      width={size}
      height={size}
      viewBox="0 0 16 16"
      fill="none"
      stroke="currentColor"
      strokeWidth="1.5"
      strokeLinecap="round"
      strokeLinejoin="round"
      aria-hidden="true">
      {paths[name]}
    </svg>
  )
}
