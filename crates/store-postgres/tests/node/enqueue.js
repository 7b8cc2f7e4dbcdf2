// Places orders as a service in Node would: order and run in one transaction. Prints what it was answered.
import postgres from 'postgres'

const sql = postgres(process.env.DATABASE_URL, { max: 1, onnotice: () => {} })

const place = (number, keep) =>
  sql.begin(async (transaction) => {
    const [run] = await transaction`
      SELECT run_id, created FROM evenhand.enqueue_run(
        tenant => 'a', kind => 'order.ship', payload => ${transaction.json({ order: number })},
        value_class => 'critical', base_priority => 7, idempotency_key => ${`order-${number}`})`
    if (!keep) throw new Error('rolled back')
    return run
  })

const answers = { first: await place(1, true), again: await place(1, true) }
answers.rolledBack = await place(2, false).catch((error) => error.message)
answers.refused = await sql`SELECT evenhand.enqueue_run(tenant => 'not an id', kind => 'order.ship')`.catch(
  ({ code, hint }) => ({ code, hint }),
)
console.log(JSON.stringify(answers))
await sql.end()
