// One stream of server-sent events for what is live. Where it does not work, the page is told to poll.

import {PREFIX, query} from './api.js'

const OPEN_MS = 3000 // a proxy that holds answers back never opens the stream
const SILENCE_MS = 12_000 // the service is never silent for that long, so the stream is dead
const MAX_FAILURES = 3 // in a row, without any event: then polling is what works here

let failures = 0

/** Whether a stream is worth trying. */
export const streams = () => typeof EventSource === 'function' && failures < MAX_FAILURES

/** Forgets failures: the user came back, or logged in. */
export function forgive() {
  failures = 0
}

/** Follows the stream at a path until it is closed by the returned function, or fails once. `lastId` is what the page
 *  has come to: it is sent what changed since.
 *  @param {string} path
 *  @param {{lastId: string, receive: (data: any, id: string) => void, fail: () => void, end: () => void}} page */
export function follow(path, {lastId, receive, fail, end}) {
  const source = new EventSource(PREFIX + query(path, {lastEventId: lastId}))
  let silence
  const close = () => {
    clearTimeout(silence)
    source.close()
  }
  const fallBack = () => {
    failures += 1
    close()
    fail()
  }
  const listen = ms => {
    clearTimeout(silence)
    silence = setTimeout(fallBack, ms)
  }
  const heard = event => {
    failures = 0
    listen(SILENCE_MS)
    receive(JSON.parse(event.data), event.lastEventId)
  }
  for (const kind of ['overview', 'page', 'alive']) source.addEventListener(kind, heard)
  source.addEventListener('end', () => {
    close()
    end()
  })
  source.addEventListener('open', () => listen(SILENCE_MS))
  source.addEventListener('error', fallBack)
  listen(OPEN_MS)
  return close
}
