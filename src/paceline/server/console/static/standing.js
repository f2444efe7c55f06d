// What stands in the service now, where somebody else may have changed it since the page was loaded.

import {get, Problem} from './api.js'
import {button, h, link} from './dom.js'

/** What stands at a path; null if nothing does. */
export async function standing(path) {
  try {
    return await get(path)
  } catch (error) {
    if (error instanceof Problem && error.status === 404) return null
    throw error
  }
}

const inOrder = (_name, value) =>
  value && typeof value === 'object' && !Array.isArray(value) ? Object.fromEntries(Object.entries(value).sort()) : value

/** Whether two JSON values are the same, in whichever order their members are. */
export const isSame = (one, other) => JSON.stringify(one, inOrder) === JSON.stringify(other, inOrder)

const notice = (...children) => h('p', {class: 'notice', role: 'alert'}, ...children)

/** Says that there is one of this name, and where. */
export const existsAlready = (name, ...place) =>
  notice(`${name} exists. Nothing was changed; choose another name, or change that one: `, link('Open it', ...place))

/** Says that what is edited is no longer what stands there. */
export const changedMeanwhile = (name, load, how = 'changed') =>
  notice(
    `${name} was ${how} meanwhile, by somebody else or in another tab. Nothing from here was saved: load the new one, and make your change again. `,
    button('Load the new one', load),
  )
