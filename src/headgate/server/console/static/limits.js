// May it run now? The plans, and a place to try them.

import {call, get, path} from './api.js'
import {gauge} from './charts.js'
import {agreed} from './dialog.js'
import {badge, button, card, field, form, h, input, link, select, show, table, update} from './dom.js'
import {count, span, spanOf} from './words.js'

const ALGORITHMS = [
  ['token_bucket', 'token bucket'],
  ['fixed_window', 'fixed window'],
  ['sliding_window', 'sliding window'],
  ['sliding_log', 'sliding log'],
]

export const limits = {
  title: 'Limits',
  open(root, shell, [name = '']) {
    const [list, editor, decided] = [h('div'), h('div'), h('div', {role: 'status'})]
    const key = input({required: true, maxlength: 512, placeholder: 'user:123'})
    const chosen = input({required: true, placeholder: 'gold, daily', value: name, list: 'plan-names'})
    const cost = input({type: 'number', min: 1, value: 1, required: true})
    const names = h('datalist', {id: 'plan-names'})
    const missing = shell.missing('assign')
    let edited

    show(
      root,
      h('h1', {}, 'Limits'),
      names,
      shell.may('admin')
        ? [card('Plans', list, link('New plan', 'limits', '')), editor]
        : card('Plans', h('p', {class: 'notice'}, 'Seeing and changing plans needs a token with the scope admin.')),
      card(
        'Try a key',
        form(
          () => ask('peek'),
          h(
            'div',
            {class: 'row'},
            field('Key', key),
            field('Plans', chosen, 'with commas between; decided together'),
            field('Cost', cost),
          ),
          h(
            'div',
            {class: 'row'},
            button('Peek', () => ask('peek'), {kind: 'main', missing}),
            button('Acquire', () => ask('acquire'), {missing}),
            button('Refund', () => ask('refund'), {missing}),
            button('Reset', reset, {kind: 'danger', missing}),
          ),
        ),
        decided,
      ),
    )

    async function ask(operation) {
      const wanted = {
        key: key.value,
        plans: chosen.value
          .split(',')
          .map(each => each.trim())
          .filter(Boolean),
      }
      if (operation !== 'reset') wanted.cost = Number(cost.value)
      const decision = await shell.attempt(() => call('POST', `/api/v1/limits/${operation}`, wanted, {also: [429]}))
      if (decision)
        show(
          decided,
          decision.plans
            ? outcome(operation, wanted.key, decision)
            : h('p', {class: 'notice'}, decision.detail ?? decision.title),
        )
    }

    async function reset() {
      if (await agreed('Reset this key?', `${key.value} gets its whole quota back under ${chosen.value}.`, 'Reset it'))
        await ask('reset')
    }

    function edit(plan) {
      edited = name
      const {controls, document} = planForm(plan)
      show(
        editor,
        card(
          plan ? `Change ${plan.name}` : 'New plan',
          form(
            save,
            controls,
            h(
              'div',
              {class: 'row'},
              h('button', {class: 'main'}, plan ? 'Change it' : 'Create it'),
              plan && button('Delete it', remove, {kind: 'danger'}),
            ),
          ),
        ),
      )

      async function save() {
        const [called, body] = document() ?? []
        if (!called) return
        const made = await shell.attempt(
          () => call('PUT', path('/admin/plans', called), body),
          `${called} is in force.`,
        )
        if (!made) return
        edited = undefined
        called === name ? shell.refresh() : shell.go('limits', called)
      }

      async function remove() {
        if (!(await agreed(`Delete ${plan.name}?`, 'Calls that name it get 404 from then on.', 'Delete it'))) return
        if (await shell.attempt(() => call('DELETE', path('/admin/plans', plan.name)), `${plan.name} is deleted.`))
          shell.go('limits')
      }
    }

    return {
      every: shell.may('admin') ? 5000 : undefined,
      async refresh() {
        if (!shell.may('admin')) return
        const {plans} = await get('/admin/plans')
        update(
          names,
          plans.map(each => h('option', {value: each.name})),
        )
        update(
          list,
          table(
            'Plans',
            ['Name', 'Algorithm', 'Limit', 'While the store is away', ''],
            plans.map(each => [
              link(each.name, 'limits', each.name),
              each.algorithm.replace('_', ' '),
              limitOf(each),
              each.onError ?? 'as the service says',
              [
                each.shadow && badge('shadow', 'warn'),
                each.overrides && badge(`own limits: ${count(Object.keys(each.overrides).length)}`),
              ],
            ]),
          ),
        )
        if (edited !== name) edit(plans.find(each => each.name === name))
      },
    }
  },
}

const limitOf = plan =>
  plan.algorithm === 'token_bucket'
    ? `${count(plan.capacity)} at once, ${plan.perSecond} a second`
    : plan.limits
      ? plan.limits.map(limitOf).join('; ')
      : `${count(plan.limit)} every ${spanOf(plan.window)}`

function outcome(operation, key, decision) {
  const word =
    operation === 'acquire'
      ? decision.allowed
        ? 'admitted'
        : 'denied'
      : decision.allowed
        ? 'would be admitted'
        : 'would be denied'
  return [
    h(
      'p',
      {},
      h('b', {}, key),
      ' ',
      badge(word, decision.allowed ? 'good' : 'wrong'),
      ` by ${decision.plan}`,
      !decision.allowed && `; come back in ${span(decision.retryAfter * 1000)}`,
      decision.degraded && badge(`degraded: ${decision.reason}`, 'warn'),
    ),
    table(
      'Where each plan stands',
      ['Plan', 'Left', ['As new in', 'number'], ''],
      decision.plans.map(each => [
        each.plan,
        gauge(each.remaining, each.limit, `${each.plan}: left`),
        span(each.resetAfter * 1000),
        [!each.allowed && badge('no room', 'wrong'), each.shadow && badge('shadow', 'warn')],
      ]),
    ),
  ]
}

function planForm(plan) {
  const called = input({required: true, maxlength: 128, value: plan?.name ?? '', readonly: Boolean(plan)})
  const algorithm = select(ALGORITHMS, {value: plan?.algorithm ?? 'token_bucket'})
  const capacity = input({type: 'number', min: 1, value: plan?.capacity ?? 10})
  const perSecond = input({value: plan?.perSecond ?? 1})
  const limit = input({type: 'number', min: 1, value: plan?.limit ?? 100})
  const window = input({value: plan?.window ?? 'PT1M'})
  const onError = select([['', 'as the service says'], 'open', 'closed', 'fallback'], {value: plan?.onError ?? ''})
  const shadow = h('input', {type: 'checkbox', checked: Boolean(plan?.shadow)})
  const overrides = h('textarea', {
    rows: 2,
    spellcheck: 'false',
    placeholder: '{"user:1": {"capacity": 100, "perSecond": 10}}',
  })
  overrides.value = plan?.overrides ? JSON.stringify(plan.overrides, null, 1) : ''
  overrides.addEventListener('input', () => overrides.setCustomValidity(''))
  const bucket = [
    field('Capacity', capacity, 'at once'),
    field('Refill', perSecond, 'a second; a number, or a fraction such as 2/3'),
  ]
  const windowed = [field('Limit', limit), field('Window', window, 'a duration, such as PT1M')]
  const fit = () => {
    for (const each of bucket) each.hidden = algorithm.value !== 'token_bucket'
    for (const each of windowed) each.hidden = algorithm.value === 'token_bucket'
  }
  algorithm.addEventListener('change', fit)
  fit()
  return {
    controls: h(
      'div',
      {class: 'grid'},
      field('Name', called),
      field('Algorithm', algorithm),
      bucket,
      windowed,
      field('While the store is away', onError),
      h('div', {class: 'field check'}, h('label', {}, shadow, ' Shadow: never deny')),
      h('div', {class: 'wide'}, field('Own limits of keys', overrides, 'JSON; empty: none')),
    ),
    document() {
      /** @type {Record<string, unknown>} */
      const body = {
        algorithm: algorithm.value,
        ...(algorithm.value === 'token_bucket'
          ? {
              capacity: Number(capacity.value),
              perSecond: perSecond.value.includes('/') ? perSecond.value.trim() : Number(perSecond.value),
            }
          : {limit: Number(limit.value), window: window.value.trim()}),
      }
      if (onError.value) body.onError = onError.value
      if (shadow.checked) body.shadow = true
      try {
        if (overrides.value.trim()) body.overrides = JSON.parse(overrides.value)
      } catch {
        overrides.setCustomValidity('This is not valid JSON.')
        overrides.reportValidity()
        return undefined
      }
      return [called.value, body]
    },
  }
}
