// Reads /metrics and turns counters into rates.

const SAMPLE = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)/
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g
const KEPT = 90

/** @typedef {[name: string, labels: Record<string, string>, value: number]} Sample */

/** Samples of a text in Prometheus' format.
 *  @returns {Sample[]} */
export function samples(text) {
  const found = []
  for (const line of text.split('\n')) {
    const parts = line.startsWith('#') ? null : SAMPLE.exec(line)
    if (!parts) continue
    const labels = {}
    for (const [, name, value] of (parts[2] ?? '').matchAll(LABEL))
      labels[name] = value.replace(/\\(.)/g, (_, c) => (c === 'n' ? '\n' : c))
    found.push([parts[1], labels, Number(parts[3])])
  }
  return found
}

/** @type {(found: Sample[], name: string, wanted?: (labels: Record<string, string>) => boolean) => number} */
export const sum = (found, name, wanted = () => true) =>
  found.reduce((total, [each, labels, value]) => (each === name && wanted(labels) ? total + value : total), 0)

/** Remembers counters and tells how fast they grow. A counter that fell began again, and counts from nought. */
export class Rates {
  #last = new Map()
  #history = new Map()

  note(name, value, now = performance.now()) {
    const before = this.#last.get(name)
    this.#last.set(name, {value, now})
    if (!before || now <= before.now) return
    const grown = value >= before.value ? value - before.value : value
    const kept = this.#history.get(name) ?? []
    kept.push((grown * 1000) / (now - before.now))
    this.#history.set(name, kept.slice(-KEPT))
  }

  history(name) {
    return this.#history.get(name) ?? []
  }

  /** Over the last few looks, so that it does not flicker; null before there were two. */
  now(name) {
    const last = this.history(name).slice(-3)
    return last.length ? last.reduce((total, each) => total + each, 0) / last.length : null
  }
}
