// Package original imports the database of openshift-online/maestro, the original, into that of this Maestro.
//
// The command of operators imports it, and no other package.
package original

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"atoll.dev/api/work"
	"atoll.dev/envelope"
	"atoll.dev/internal/jsonvalue"
	"atoll.dev/internal/pgsession"
	"atoll.dev/internal/rest"
	"atoll.dev/maestro/apierror"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/database"
	"atoll.dev/maestro/ledger"
	"atoll.dev/store"
)

// Options are the parameters of Import. From and To are needed.
type Options struct {
	From string // DSN of the database of openshift-online/maestro; it is only read
	To   string // DSN of this server's database; Import creates the schema when the database is empty
	// Envelope unwraps the keys that encrypt the contents of Secrets in the database To; nil when it has none.
	Envelope envelope.KMS
	Batch    int // rows of a transaction; default 200

	// Progress is called after each batch; may be nil.
	Progress func(Report)
	Logger   *slog.Logger // default: discard
}

// Report has the result of an import: counts for each table, and remarks about rows.
type Report struct {
	Consumers Count `json:"consumers"`
	Bundles   Count `json:"bundles"`
	// Refused has the rows that Import did not store, with the reasons; at most 1000.
	Refused []Remark `json:"refused"`
	// Notes has the stored rows that lost a part of their content; at most 1000.
	Notes []Remark `json:"notes"`
}

// Count counts rows of one table.
type Count struct {
	Read     int `json:"read"`
	Imported int `json:"imported"`
	Present  int `json:"present"` // this server had them before
	Refused  int `json:"refused"`
	Deleting int `json:"deleting"` // imported rows whose deletion the agent has not confirmed
}

// Remark is about one row.
type Remark struct {
	Table  string `json:"table"`
	ID     string `json:"id"`
	Reason string `json:"reason"`
}

// maxRemarks bounds the lists of a report.
const maxRemarks = 1000

// Import copies consumers and resource bundles of openshift-online/maestro with their versions, so
// agents that change to this server hold their works already and apply nothing again. Bundles under
// deletion stay under deletion. Import changes no row that this server has, so it may be stopped and
// run again. It refuses rows that it cannot read, and imports the others; an error is about the whole
// import.
func Import(ctx context.Context, o Options) (Report, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Batch <= 0 {
		o.Batch = 200
	}
	report := Report{Refused: []Remark{}, Notes: []Remark{}}
	from, err := pgsession.Connect(ctx, o.From)
	if err != nil {
		return report, fmt.Errorf("import: connecting to the other database: %w", err)
	}
	defer from.Close(context.WithoutCancel(ctx))
	// One snapshot, so that the changes of a running server do not matter.
	if _, err := from.Exec(ctx, "begin isolation level repeatable read read only"); err != nil {
		return report, fmt.Errorf("import: %w", err)
	}
	options := database.Options(o.To, 4, o.Logger)
	options.Envelope = o.Envelope
	st, err := store.Open(ctx, options)
	if err != nil {
		return report, fmt.Errorf("import: %w", err)
	}
	defer st.Close()
	i := &importer{o: o, from: from, store: st, report: &report}
	ctx = store.WithActor(ctx, store.Actor{Principal: "atoll maestro import"})
	err = i.importTable(ctx, "consumers", &report.Consumers, i.importConsumer)
	if err == nil {
		err = i.importTable(ctx, "resources", &report.Bundles, i.importBundle)
	}
	if err != nil {
		return report, fmt.Errorf("import: %w", err)
	}
	return report, nil
}

type importer struct {
	o      Options
	from   *pgx.Conn
	store  *store.Store
	report *Report
}

// rowResult is the result of one row.
type rowResult struct {
	present, deleting bool
	refused           string // why
	notes             []string
}

func refuse(format string, args ...any) rowResult {
	return rowResult{refused: fmt.Sprintf(format, args...)}
}

// importTable reads a table in the order of its ids and calls take for each row.
func (i *importer) importTable(
	ctx context.Context,
	name string,
	count *Count,
	take func(context.Context, *store.Tx,
		json.RawMessage) (rowResult, error),
) error {
	last := ""
	for {
		// Rows are read as JSON, so further columns of other versions do not matter.
		rows, err := i.from.Query(ctx, "select r.id, to_jsonb(r) from "+pgx.Identifier{name}.Sanitize()+
			" r where r.id > $1 order by r.id limit $2", last, i.o.Batch)
		if err != nil {
			return fmt.Errorf("reading %s of the other database: %w", name, err)
		}
		type raw struct {
			id  string
			row json.RawMessage
		}
		batch, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r raw, err error) {
			err = row.Scan(&r.id, &r.row)
			return r, err
		})
		if err != nil {
			return fmt.Errorf("reading %s of the other database: %w", name, err)
		}
		if len(batch) == 0 {
			return nil
		}
		results := make([]rowResult, len(batch))
		err = i.store.Tx(ctx, func(tx *store.Tx) error {
			for n, r := range batch {
				var err error
				if results[n], err = take(ctx, tx, r.row); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil && isFatal(ctx, err) {
			return err
		}
		if err != nil {
			// A row of the batch failed in the database: import them one by one.
			for n, r := range batch {
				err := i.store.Tx(ctx, func(tx *store.Tx) (err error) {
					results[n], err = take(ctx, tx, r.row)
					return err
				})
				if err != nil && isFatal(ctx, err) {
					return err
				}
				if err != nil {
					results[n] = refuse("%s", err)
				}
			}
		}
		for n, r := range batch {
			i.countRow(name, r.id, count, results[n])
		}
		last = batch[len(batch)-1].id
		if i.o.Progress != nil {
			i.o.Progress(*i.report)
		}
	}
}

// isFatal reports whether an error is about the database and not about one row.
func isFatal(ctx context.Context, err error) bool { return store.IsTransient(err) || ctx.Err() != nil }

func (i *importer) countRow(table, id string, count *Count, o rowResult) {
	count.Read++
	remark := func(list *[]Remark, reason string) {
		if len(*list) < maxRemarks {
			*list = append(*list, Remark{table, rest.Shorten(id, 200), reason})
		}
	}
	for _, n := range o.notes {
		remark(&i.report.Notes, n)
	}
	switch {
	case o.refused != "":
		count.Refused++
		remark(&i.report.Refused, o.refused)
	case o.present:
		count.Present++
	default:
		count.Imported++
		if o.deleting {
			count.Deleting++
		}
	}
}

func (i *importer) importConsumer(ctx context.Context, tx *store.Tx, raw json.RawMessage) (rowResult, error) {
	var row struct {
		baseRow
		Name   string            `json:"name"`
		Labels map[string]string `json:"labels"`
	}
	if err := json.Unmarshal(raw, &row); err != nil {
		return refuse("the row cannot be read: %s", err), nil
	}
	if row.DeletedAt != nil {
		return refuse("it is deleted"), nil
	}
	if err := errors.Join(bundle.CheckConsumerName(work.Consumer(row.Name)),
		bundle.CheckConsumerLabels(row.Labels)); err != nil {
		return refuse("%s", apierror.ReasonOf(err)), nil
	}
	have, err := tx.GetByName(ctx, bundle.ConsumerKind, "", row.Name)
	switch {
	case err == nil && have.ID == row.ID:
		return rowResult{present: true}, nil
	case err == nil:
		return rowResult{present: true, notes: []string{fmt.Sprintf("consumer %s is here with the id %s, and stays so",
			row.Name, have.ID)}}, nil
	case !errors.Is(err, store.ErrNotFound):
		return rowResult{}, err
	}
	spec, err := bundle.Marshal(bundle.Consumer{Labels: row.Labels})
	if err != nil {
		return rowResult{}, err
	}
	created, updated := row.times()
	_, err = tx.Import(
		ctx,
		store.Document{Kind: bundle.ConsumerKind, ID: row.ID, Name: row.Name, Spec: spec, Generation: 1,
			CreatedAt: created, UpdatedAt: updated},
	)
	if exists, ok := errors.AsType[*store.ExistsError](err); ok && !exists.ByName {
		return refuse("the id is, or was, another consumer's here"), nil
	}
	return rowResult{}, err
}

func (i *importer) importBundle(ctx context.Context, tx *store.Tx, raw json.RawMessage) (rowResult, error) {
	var row resourceRow
	if err := json.Unmarshal(raw, &row); err != nil {
		return refuse("the row cannot be read: %s", err), nil
	}
	spec, err := row.spec()
	if err != nil {
		return refuse("%s", apierror.ReasonOf(err)), nil
	}
	status, notes := row.status()
	if row.Name != "" && row.Name != row.ID {
		notes = append(notes, fmt.Sprintf("its name %q is not kept: a bundle's name is its id",
			rest.Shorten(row.Name, 100)))
	}
	if err := ledger.LockConsumerForBundle(ctx, tx, work.Consumer(row.Consumer)); err != nil {
		return rowResult{}, err
	}
	if _, err := tx.GetByName(ctx, bundle.ConsumerKind, "", row.Consumer); errors.Is(err, store.ErrNotFound) {
		return refuse("its consumer %q is not here", rest.Shorten(row.Consumer, 100)), nil
	} else if err != nil {
		return rowResult{}, err
	}
	d := store.Document{Kind: bundle.Kind, ID: row.ID, Scope: row.Consumer, Generation: row.Version}
	if d.Spec, err = bundle.Marshal(spec); err != nil {
		return rowResult{}, err
	}
	if !status.IsEmpty() {
		if d.Status, err = bundle.Marshal(status); err != nil {
			return rowResult{}, err
		}
	}
	d.CreatedAt, d.UpdatedAt = row.times()
	if row.DeletedAt != nil && !row.DeletedAt.IsZero() {
		d.DeletedAt = &row.DeletedAt.Time
	}
	_, err = tx.Import(ctx, d)
	switch {
	case errors.Is(err, store.ErrExists):
		return i.compareStored(ctx, tx, d, spec)
	case errors.Is(err, store.ErrInvalid):
		return refuse("%s", err), nil
	case err != nil:
		return rowResult{}, err
	}
	if err := storeLedger(ctx, tx, d, spec, status); err != nil {
		return rowResult{}, err
	}
	return rowResult{deleting: d.DeletedAt != nil, notes: notes}, nil
}

// compareStored decides about a row whose bundle this database has already: equal and older rows change nothing, and
// different ones are refused.
func (i *importer) compareStored(ctx context.Context, tx *store.Tx, d store.Document, spec bundle.Spec) (rowResult,
	error) {
	have, err := tx.Get(ctx, bundle.Kind, d.ID)
	if errors.Is(err, store.ErrNotFound) {
		return refuse("it was deleted in this database; an import does not create deleted bundles again"), nil
	}
	if err != nil {
		return rowResult{}, err
	}
	ours, err := bundle.SpecOf(have)
	if err != nil {
		return rowResult{}, err
	}
	version := ours.VersionAt(have.Generation)
	if version > d.Generation {
		return rowResult{present: true, notes: []string{fmt.Sprintf("it is here with the later version %d, and stays so",
			version)}}, nil
	}
	if version < d.Generation || have.Scope != d.Scope || !jsonvalue.EqualOptional(ours.Data, spec.Data) ||
		!jsonvalue.EqualOptional(ours.Metadata, spec.Metadata) {
		return refuse("it is here with other content, version %d on consumer %s; nothing is overwritten", version,
			have.Scope), nil
	}
	return rowResult{present: true}, nil
}

// storeLedger stores the wanted generation of an imported bundle and the acknowledged one.
func storeLedger(ctx context.Context, tx *store.Tx, d store.Document, spec bundle.Spec, status bundle.Status) error {
	if err := ledger.RecordOrder(ctx, tx, d, spec); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `delete from unknown_work where consumer = $1 and id = $2`, d.Scope, d.ID); err != nil {
		return err
	}
	if status.IsEmpty() {
		return nil
	}
	hash, err := bundle.HashOf(status)
	if err != nil {
		return err
	}
	_, err = tx.Exec(
		ctx, `update ledger set acknowledged = $2, sequence = $3, status_hash = $4, received_at = $5 where id = $1`,
		d.ID, status.Version, status.Sequence, hash, status.Time)
	return err
}
