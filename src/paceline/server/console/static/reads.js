// What a page reads: all parts in one answer, kept up to date by one stream.

import {get, Problem, query} from './api.js'

/** The parts of one page, by their paths. */
export class Reads {
  /** @type {Map<string, {status: number, body: any}>} */
  #parts = new Map()
  #asked = new Set()
  #versions = []
  #answer

  /** The JSON at a path, from the newest answer. What is not known yet is asked for: all paths that a page reads in
   *  one go are one request. Whatever is beyond 2xx is thrown as a `Problem`. */
  read = async path => {
    if (!this.#parts.has(path)) await this.#ask(path)
    const {status, body} = this.#parts.get(path) ?? {status: 500, body: {}}
    if (status >= 300) throw new Problem(status, body)
    return body
  }

  #ask(path) {
    this.#asked.add(path)
    this.#answer ??= Promise.resolve().then(async () => {
      const paths = [...this.#asked]
      this.#asked.clear()
      this.#answer = undefined
      const {parts, version} = await get(query('/api/v1/console/page', {read: paths}))
      this.#versions.push(version)
      this.receive(parts)
    })
    return this.#answer
  }

  /** Takes parts that changed. */
  receive(parts) {
    for (const [path, part] of Object.entries(parts)) this.#parts.set(path, part)
  }

  /** How many paths are read. */
  get size() {
    return this.#parts.size
  }

  /** Where the stream of these parts is. */
  stream(every) {
    return query('/api/v1/console/stream', {read: [...this.#parts.keys()], every})
  }

  /** What the page has come to. */
  get version() {
    return this.#versions.join('.')
  }
}
