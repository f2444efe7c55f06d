// Calls to paceline's own HTTP API. The session's cookie goes along by itself; no token is ever kept here.

export class Problem extends Error {
  constructor(status, body = {}) {
    super(body.detail || body.title || `the service answered ${status}`)
    this.status = status
    this.body = body
    this.scope = status === 403 ? /scope (\w+)/.exec(body.detail ?? '')?.[1] : undefined
  }
}

/** The service can't be reached at all, or its answer was lost: then a change may have been made. */
export class Unreachable extends Error {
  constructor(message, isChange) {
    super(message)
    this.isChange = isChange
  }
}

const PATIENCE_MS = 8000

/** Where the service is: the root, or the prefix under which a proxy or another application serves it. */
export const PREFIX = new URL('..', import.meta.url).pathname.replace(/\/$/, '')

async function sent(method, path, body, {headers, changes}) {
  /** @type {RequestInit & {headers: Record<string, string>}} */
  const options = {
    method,
    headers: {Accept: 'application/json', ...headers},
    credentials: 'same-origin',
    cache: 'no-store',
    redirect: 'error',
    // Only looking is given up: whoever asked for a change wants to know what came of it.
    signal: method === 'GET' ? AbortSignal.timeout(PATIENCE_MS) : undefined,
  }
  if (body !== undefined) {
    options.body = JSON.stringify(body)
    options.headers['Content-Type'] = 'application/json'
  }
  try {
    const answer = await fetch(PREFIX + path, options)
    // Here, for the connection may end before the body does.
    return {answer, text: await answer.text()}
  } catch (error) {
    const late = error.name === 'TimeoutError' ? ` within ${PATIENCE_MS / 1000} seconds` : ''
    const text = changes
      ? 'The service did not answer. The change may have been made: look before you press again.'
      : `The service does not answer${late}.`
    throw new Unreachable(text, changes)
  }
}

function parsed(text) {
  try {
    return JSON.parse(text)
  } catch {
    return {}
  }
}

/** The JSON of an answer. Statuses in `also` are answers too; others beyond 2xx are thrown as a `Problem`. `changes` is
 *  false for a call that only tries or looks.
 *  @param {string} method
 *  @param {string} path
 *  @param {unknown} [body]
 *  @param {{also?: number[], headers?: Record<string, string>, changes?: boolean}} [options] */
export async function call(method, path, body, {also = [], headers = {}, changes = method !== 'GET'} = {}) {
  const {answer, text} = await sent(method, path, body, {headers, changes})
  const json = answer.headers.get('content-type')?.includes('json') ? parsed(text) : undefined
  if (!answer.ok && !also.includes(answer.status)) throw new Problem(answer.status, json)
  return json
}

export const get = (path, options) => call('GET', path, undefined, options)

/** A path of texts, each one escaped: `path('/api/v1/slots', id)`. */
export const path = (start, ...parts) => [start, ...parts.map(encodeURIComponent)].join('/')

/** A path with a query; what is empty is left out, and a list is given one by one. */
export function query(start, values) {
  const given = Object.entries(values)
    .flatMap(([name, value]) => (Array.isArray(value) ? value.map(each => [name, each]) : [[name, value]]))
    .filter(([, value]) => value !== undefined && value !== null && value !== '')
  if (!given.length) return start
  return `${start}${start.includes('?') ? '&' : '?'}${new URLSearchParams(given)}`
}
