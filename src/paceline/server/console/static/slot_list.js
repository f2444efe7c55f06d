// Booked and cancelled slots, by their times.

import {query as asQuery} from './api.js'
import {CONFIG_NAMES} from './config_names.js'
import {badge, card, h, link, table, update} from './dom.js'
import {chosen, filterForm, isNarrowed, pager, sortHeading, totalOf} from './list.js'
import {count, moment, span} from './words.js'

const PAGE = 50
const FILTERS = [
  {name: 'configName', label: 'Slots of config', maxlength: 128, list: CONFIG_NAMES},
  {
    name: 'status',
    label: 'Status',
    options: [
      ['BOOKED', 'booked'],
      ['CANCELLED', 'cancelled'],
    ],
  },
  {name: 'owner', label: 'Application', maxlength: 64, placeholder: 'invoices'},
  {name: 'from', label: 'From', time: true},
  {name: 'to', label: 'Before', time: true},
]

/** A card, and how it is refreshed. */
export function slotList(shell, parts, query) {
  const list = h('div')
  return {
    element: card('Slots', filterForm(shell, parts, query, FILTERS), list),
    async refresh(read) {
      const given = {
        ...chosen(query, FILTERS),
        sort: query.sort ?? '-scheduledTime',
        cursor: query.cursor,
        limit: PAGE,
        total: 'true',
      }
      const {slots, next, total} = await read(asQuery('/api/v1/slots', given))
      const runsAt = sortHeading('Runs at', 'scheduledTime', parts, query, {first: '-scheduledTime'})
      update(
        list,
        totalOf(total, 'slot matches.', 'slots match.'),
        table(
          'Slots',
          ['Event', 'Status', runsAt, 'Asked for', ['Delay', 'number'], 'Config', 'Application', ['Why', 'text']],
          slots.map(slot => [
            link(slot.eventId, 'slots', slot.configName, slot.eventId),
            badge(slot.status.toLowerCase(), slot.status === 'BOOKED' ? '' : 'off'),
            moment(slot.scheduledTime, {fractions: true}),
            moment(slot.requestedTime),
            span(slot.delayMs),
            `${slot.configName}, version ${count(slot.configVersion)}`,
            slot.owner ?? '',
            [slot.reason, slot.actor].filter(Boolean).join(', by '),
          ]),
          isNarrowed(query, FILTERS) || query.cursor
            ? 'No slot matches.'
            : ['No slot is booked. Try ', h('code', {}, TRY), '.'],
        ),
        pager(parts, query, next),
      )
    },
  }
}

const TRY = 'paceline slots assign --config default --event e1 --at 2030-01-01T16:00:00Z'
