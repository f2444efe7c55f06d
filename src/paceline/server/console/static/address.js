// Addresses: `#/page/part?name=value`. Whatever a page shows is in its address, so that it can be reloaded and shared.

/** @typedef {Record<string, string | number | undefined | null>} Query */

/** An address of parts, with a query as the last one, if there is one; what is empty is left out of it.
 *  @param {(string | Query)[]} parts */
export function address(...parts) {
  const last = parts.at(-1)
  const query = typeof last === 'object' ? last : {}
  const path = parts.filter(part => typeof part !== 'object').map(part => encodeURIComponent(String(part)))
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== '')
  const values = new URLSearchParams(given.map(([name, value]) => [name, String(value)]))
  return `#/${path.join('/')}${given.length ? `?${values}` : ''}`
}

/** The parts and the query of an address. */
export function parsed(hash) {
  const [path, ...query] = hash.replace(/^#\//, '').split('?')
  return {parts: path.split('/').map(decoded), query: Object.fromEntries(new URLSearchParams(query.join('?')))}
}

function decoded(part) {
  try {
    return decodeURIComponent(part)
  } catch {
    return part
  }
}
