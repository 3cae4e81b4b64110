package main

// Revisions. etcd's model and checkers take for granted that the first write has revision 2 and each further one the next
// number. Revisions of a router are times: ordered, and far apart. So every recorded revision is replaced by a dense one
// before anything is judged, at a real etcd too.
//
// The order comes from the log: a watch over all keys from the beginning on. The i-th revision in it, w(i), becomes i + 1.
// Any other number R is between two writes and becomes what the lower one became: floor(R) = 1 + the number of w(i) <= R.
//
// Why this hides nothing:
//
//   - Two writes never become one: floor is strictly increasing on w(1), w(2), ...
//   - For a header or a progress R and a write w, w <= R exactly if floor(w) <= floor(R). So "the answer at R shows all writes
//     up to R and no later one", and "no event at or below R is still to come", mean the same before and after. A header
//     below a write that was acknowledged before is still below it.
//   - A watch from S begins at the first write at or above S: start(S) = 2 + the number of w(i) < S. For a write w,
//     w >= S exactly if floor(w) >= start(S).
//   - Where a revision must be that of a write (of an event, of a key's value, of an acknowledged write) it is not rounded:
//     one that is not in the log is a finding, and nothing further is judged.
//
// What rounding would hide, that the progress of a watch goes back between two writes, is looked for in the recorded numbers.
//
// The log is itself under test. What it lacks is found by what else is known: each acknowledged write must be in it with what
// it wrote, it must have nothing that nobody asked for, and the other full watches, of which one for each endpoint reads the
// history when all is over, are judged against it, as is every read.

import (
	"fmt"
	"slices"
	"sort"

	"github.com/anishathalye/porcupine"

	"go.etcd.io/etcd/tests/v3/robustness/model"
	"go.etcd.io/etcd/tests/v3/robustness/report"
)

// The revision of the empty store in etcd's model.
const empty = 1

// A number that no revision has.
const nowhere = -2

// The revisions of all writes, and what each has written.
type log struct {
	written  []int64
	requests []model.EtcdRequest
	events   int
}

// Makes the log of what a client that watched all keys was sent, over one watch or several that follow each other.
func newLog(full report.ClientReport) (*log, []string) {
	made := &log{}
	var findings []string
	for _, watch := range full.Watch {
		for _, answer := range watch.Responses {
			for _, event := range answer.Events {
				made.events++
				last := len(made.written) - 1
				switch {
				case last < 0 || event.Revision > made.written[last]:
					made.written = append(made.written, event.Revision)
					made.requests = append(made.requests, model.EtcdRequest{Type: model.Txn, Txn: &model.TxnRequest{}})
					last++
				case event.Revision < made.written[last]:
					findings = append(findings, fmt.Sprintf("the log goes back from revision %d to %d of %s", made.written[last], event.Revision, event.Key))
					continue
				}
				txn := made.requests[last].Txn
				txn.OperationsOnSuccess = append(txn.OperationsOnSuccess, written(event.Event))
			}
		}
	}
	return made, findings
}

func written(event model.Event) model.EtcdOperation {
	if event.Type == model.DeleteOperation {
		return model.EtcdOperation{Type: event.Type, Delete: model.DeleteOptions{Key: event.Key}}
	}
	return model.EtcdOperation{Type: event.Type, Put: model.PutOptions{Key: event.Key, Value: event.Value}}
}

func (l *log) floor(raw int64) int64 {
	return empty + int64(sort.Search(len(l.written), func(i int) bool { return l.written[i] > raw }))
}

func (l *log) start(raw int64) int64 {
	return empty + 1 + int64(sort.Search(len(l.written), func(i int) bool { return l.written[i] >= raw }))
}

func (l *log) exact(raw int64) (int64, bool) {
	_, found := slices.BinarySearch(l.written, raw)
	return l.floor(raw), found
}

// Replaces revisions in reports, and collects what has none that is in the log.
type denser struct {
	*log
	leaseRevisions bool
	findings       []string
}

func (d *denser) reports(reports []report.ClientReport) []report.ClientReport {
	made := make([]report.ClientReport, 0, len(reports))
	for _, one := range reports {
		to := report.ClientReport{ClientID: one.ClientID}
		for _, operation := range one.KeyValue {
			to.KeyValue = append(to.KeyValue, d.operation(operation))
		}
		for _, watch := range one.Watch {
			to.Watch = append(to.Watch, d.watch(one.ClientID, watch))
		}
		made = append(made, to)
	}
	return made
}

// The metadata of an operation, which etcd's page of a history shows beside it, keeps the recorded revisions.
func (d *denser) operation(from porcupine.Operation) porcupine.Operation {
	to := from
	request, response := from.Input.(model.EtcdRequest), from.Output.(model.MaybeEtcdResponse)
	to.Input = d.request(request)
	if response.Error != "" || response.ClientError != "" {
		return to
	}
	if !d.leaseRevisions && (request.Type == model.LeaseGrant || request.Type == model.LeaseRevoke) {
		// It was done, at a revision that the answer does not tell.
		to.Output = model.MaybeEtcdResponse{Persisted: true}
		return to
	}
	where := func() string { return describe(from) }
	if response.Range != nil {
		made := *response.Range
		made.KVs = d.keyValues(made.KVs, where)
		response.Range = &made
	}
	if response.Txn != nil {
		made := *response.Txn
		made.Results = slices.Clone(made.Results)
		for i := range made.Results {
			made.Results[i].KVs = d.keyValues(made.Results[i].KVs, where)
		}
		response.Txn = &made
	}
	if response.Revision != model.RevisionForNonLinearizableResponse {
		raw := response.Revision
		response.Revision = d.floor(raw)
		if _, found := d.exact(raw); !found && len(effects(from)) > 0 {
			d.find("no event has the revision of an acknowledged write: %s", where())
		}
	}
	to.Output = response
	return to
}

func (d *denser) request(from model.EtcdRequest) model.EtcdRequest {
	to := from
	if from.Range != nil && from.Range.Revision > 0 {
		made := *from.Range
		made.Revision = d.floor(made.Revision)
		to.Range = &made
	}
	if from.Compact != nil {
		to.Compact = &model.CompactRequest{Revision: d.floor(from.Compact.Revision)}
	}
	if from.Txn != nil {
		made := *from.Txn
		made.Conditions = slices.Clone(made.Conditions)
		for i := range made.Conditions {
			if expected := &made.Conditions[i].ExpectedRevision; *expected > 0 {
				// No key was ever at a revision that no write has, so the condition is false.
				if dense, found := d.exact(*expected); found {
					*expected = dense
				} else {
					*expected = nowhere
				}
			}
		}
		to.Txn = &made
	}
	return to
}

func (d *denser) keyValues(from []model.KeyValue, where func() string) []model.KeyValue {
	if from == nil {
		return nil
	}
	to := slices.Clone(from)
	for i := range to {
		dense, found := d.exact(to[i].ModRevision)
		if !found {
			d.find("no event has the revision of %s in an answer: %s", to[i].Key, where())
		}
		to[i].ModRevision = dense
	}
	return to
}

func (d *denser) watch(client int, from model.WatchOperation) model.WatchOperation {
	to := model.WatchOperation{Request: from.Request}
	if from.Request.Revision > 0 {
		to.Request.Revision = d.start(from.Request.Revision)
	}
	for _, answer := range from.Responses {
		made := answer
		made.Revision = d.floor(answer.Revision)
		made.Events = nil
		for _, event := range answer.Events {
			dense, found := d.exact(event.Revision)
			if !found {
				d.find("client %d: the log has no revision %d of the event of %s", client, event.Revision, event.Key)
			}
			event.Revision = dense
			if event.PrevValue != nil {
				previous := *event.PrevValue
				if previous.ModRevision, found = d.exact(previous.ModRevision); !found {
					d.find("client %d: the log has no revision %d of what %s was before", client, event.PrevValue.ModRevision, event.Key)
				}
				event.PrevValue = &previous
			}
			made.Events = append(made.Events, event)
		}
		to.Responses = append(to.Responses, made)
	}
	return to
}

func (d *denser) find(format string, values ...any) {
	d.findings = append(d.findings, fmt.Sprintf(format, values...))
}

// What an acknowledged operation has changed. A deletion of nothing has changed nothing.
func effects(operation porcupine.Operation) []model.EtcdOperation {
	request, response := operation.Input.(model.EtcdRequest), operation.Output.(model.MaybeEtcdResponse)
	if request.Type != model.Txn || response.Txn == nil || response.Error != "" {
		return nil
	}
	operations := request.Txn.OperationsOnSuccess
	if response.Txn.Failure {
		operations = request.Txn.OperationsOnFailure
	}
	var changed []model.EtcdOperation
	for i, one := range operations {
		deleted := i < len(response.Txn.Results) && response.Txn.Results[i].Deleted > 0
		if one.Type == model.PutOperation || one.Type == model.DeleteOperation && deleted {
			changed = append(changed, one)
		}
	}
	return changed
}

func describe(operation porcupine.Operation) string {
	text := model.NonDeterministicModel(nil).DescribeOperation(operation.Input, operation.Output)
	return fmt.Sprintf("client stream %d, %.6f s to %.6f s: %s", operation.ClientId, float64(operation.Call)/1e9, float64(operation.Return)/1e9, text)
}
