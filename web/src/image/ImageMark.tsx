/** A logo in one style for every image: its first letters on a colour of the neutral scale. */
export function ImageMark({ name, size = 24 }: { name: string; size?: number }) {
  const word = name.split('/').pop() ?? name
  const known: Record<string, string> = {
    python: 'Py',
    pytorch: 'PT',
    tensorflow: 'TF',
    r: 'R',
    julia: 'Jl',
    base: '$_',
    cuda: 'Cu',
    node: 'Js',
    go: 'Go',
  }
  const text = known[word.split(/[-.:]/)[0]!.toLowerCase()] ?? word.slice(0, 2)
  return (
    <span
      aria-hidden="true"
      className="mono"
      style={{
        width: size,
        height: size,
        borderRadius: 5,
        display: 'inline-grid',
        placeItems: 'center',
        flex: 'none',
        background: 'var(--b-sunken)',
        color: 'var(--b-ink-2)',
        fontSize: size * 0.42,
        fontWeight: 600,
        border: '1px solid var(--b-line)',
      }}>
      {text}
    </span>
  )
}
