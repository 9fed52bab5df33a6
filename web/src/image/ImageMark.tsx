/** A logo in one style for every image: its first letters on a colour of the neutral scale. */
export function ImageMark({ name, size = 'small' }: { name: string; size?: 'small' | 'large' }) {
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
    <span aria-hidden="true" className={`mono imagemark ${size}`}>
      {text}
    </span>
  )
}
