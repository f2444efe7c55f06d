// One thing by its id, for the pages that show it.

import {Problem} from './api.js'
import {h, update} from './dom.js'

/** What stands at an address; undefined if nothing does, and `shown` says so. */
export async function lookUp(read, shown, url) {
  try {
    return await read(url)
  } catch (error) {
    if (!(error instanceof Problem) || ![400, 404].includes(error.status)) throw error
    update(shown, h('p', {class: 'notice'}, error.message))
  }
}
