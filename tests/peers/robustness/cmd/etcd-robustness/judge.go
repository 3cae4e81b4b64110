package main

// The judgement of a recording: by etcd's validators, and before that by what has to hold for their model to apply.

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
	"go.uber.org/zap"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/tests/v3/robustness/model"
	"go.etcd.io/etcd/tests/v3/robustness/report"
	"go.etcd.io/etcd/tests/v3/robustness/validate"
)

// The checks, as a verdict names them.
const (
	ofLog           = "log"
	ofAssumptions   = "assumptions"
	ofOrder         = "linearization"
	ofWatches       = "watch"
	ofOldReads      = "serializable"
	undecided       = "undecided"
	findingsShown   = 10
	operationsShown = 8
)

type verdict struct {
	// What is wrong with the log or does not fit it. The validators were not asked then.
	findings         []string
	revisions, apart int
	result           validate.RobustnessResult
}

// What failed first, and how; nothing if all is well.
func (v verdict) broken() (check, how string) {
	for _, one := range []struct {
		check string
		err   error
	}{
		{ofLog, v.logError()},
		{ofAssumptions, v.result.Assumptions.Error()},
		{ofOrder, v.result.Linearization.Error()},
		{ofWatches, v.result.Watch.Error()},
		{ofOldReads, v.result.Serializable.Error()},
	} {
		if one.err == nil {
			continue
		}
		if status := v.result.Linearization.Status; one.check == ofOrder && (status == validate.Timeout || status == validate.DeadlineExceeded) {
			return undecided, one.err.Error()
		}
		return one.check, one.err.Error()
	}
	return "", ""
}

func (v verdict) logError() error {
	if len(v.findings) == 0 {
		return nil
	}
	return fmt.Errorf("%d findings, the first: %s", len(v.findings), v.findings[0])
}

// What the validators print, beside what they log, goes to `says`, as standard output is for the last line.
func (r *recording) judge(lg *zap.Logger, says *os.File, limit time.Duration) verdict {
	made, findings := newLog(r.client(r.Full[0]))
	v := verdict{findings: findings, revisions: len(made.written)}
	v.findings = append(v.findings, made.against(r.reports)...)
	v.findings = append(v.findings, r.lost()...)
	v.findings = append(v.findings, progressBack(r.reports)...)
	dense := denser{log: made, leaseRevisions: r.LeaseRevisions}
	reports := dense.reports(r.reports)
	v.findings = append(v.findings, dense.findings...)
	if len(v.findings) > 0 {
		return v
	}
	if r.Apart {
		v.apart = forgive(reports)
	}
	stdout := os.Stdout
	os.Stdout = says
	defer func() { os.Stdout = stdout }()
	config := validate.Config{ExpectRevisionUnique: r.Unique}
	v.result = validate.ValidateAndReturnVisualize(lg, config, reports, made.requests, limit)
	if v.result.Linearization.Error() != nil {
		// The validators stop there. Watches are judged against the log alone, so they can be judged nevertheless.
		v.result.Watch = validate.ValidateAndReturnVisualize(lg, config, watchesOnly(reports), made.requests, limit).Watch
	}
	return v
}

func (r *recording) client(id int) report.ClientReport {
	for _, one := range r.reports {
		if one.ClientID == id {
			return one
		}
	}
	return report.ClientReport{}
}

// What the log must have, and must not have, by what clients asked for and were told.
func (l *log) against(reports []report.ClientReport) (findings []string) {
	if len(l.written) == 0 {
		return []string{"nothing was written"}
	}
	replay := model.NewReplay(l.requests)
	last := empty + int64(len(l.written))
	if _, err := replay.StateForRevision(last); err != nil {
		findings = append(findings, "the log has a revision that changes nothing, such as the deletion of a key that is not there")
	}
	asked := map[model.EtcdOperation]int{}
	at := map[int64]porcupine.Operation{}
	for _, one := range reports {
		for _, operation := range one.KeyValue {
			if request := operation.Input.(model.EtcdRequest); request.Type == model.Txn {
				for _, part := range request.Txn.AllOperations() {
					asked[unleased(part)]++
				}
			}
			changed := effects(operation)
			if len(changed) == 0 {
				continue
			}
			revision := operation.Output.(model.MaybeEtcdResponse).Revision
			if other, found := at[revision]; found {
				findings = append(findings, fmt.Sprintf("two acknowledged writes have one revision: %s; %s", describe(other), describe(operation)))
			}
			at[revision] = operation
			i, found := slices.BinarySearch(l.written, revision)
			if found && !same(changed, l.requests[i].Txn.OperationsOnSuccess) {
				findings = append(findings, fmt.Sprintf("the log has something else at the revision of an acknowledged write: %v, written by %s", l.requests[i].Txn.OperationsOnSuccess, describe(operation)))
			}
		}
	}
	for i, request := range l.requests {
		for _, part := range request.Txn.OperationsOnSuccess {
			// No value is written twice. Keys are deleted by leases, too.
			if asked[part]--; part.Type == model.PutOperation && asked[part] < 0 {
				findings = append(findings, fmt.Sprintf("the log has at revision %d what nobody wrote, or once more than it was written: %v", l.written[i], part.Put))
			}
		}
	}
	return findings
}

func unleased(operation model.EtcdOperation) model.EtcdOperation {
	operation.Put.LeaseID = 0
	return operation
}

// Whether the same was changed. The order within a revision is judged by the validators, from one watch to the other.
func same(asked, written []model.EtcdOperation) bool {
	if len(asked) != len(written) {
		return false
	}
	for _, one := range asked {
		if !slices.Contains(written, unleased(one)) {
			return false
		}
	}
	return true
}

// Watches over all keys that were told of a compaction which nobody made.
func (r *recording) lost() (findings []string) {
	for _, id := range r.Full {
		for _, watch := range r.client(id).Watch {
			for _, answer := range watch.Responses {
				if !r.Compacts && strings.Contains(answer.Error, rpctypes.ErrCompacted.Error()) {
					findings = append(findings, fmt.Sprintf("client %d: a watch over all keys from %d was ended at %.6f s by a compaction that nobody made", id, watch.Request.Revision, answer.Time.Seconds()))
				}
			}
		}
	}
	return findings
}

// Progress that goes back between two writes, which dense revisions do not show.
func progressBack(reports []report.ClientReport) (findings []string) {
	for _, one := range reports {
		for _, watch := range one.Watch {
			var last int64
			for _, answer := range watch.Responses {
				if answer.IsProgressNotify && answer.Revision < last {
					findings = append(findings, fmt.Sprintf("client %d: the progress of a watch goes back from %d to %d", one.ClientID, last, answer.Revision))
				}
				if answer.IsProgressNotify {
					last = answer.Revision
				}
			}
		}
	}
	return findings
}

// The watches, with nothing but a read of the empty store, without which the validators judge nothing.
func watchesOnly(reports []report.ClientReport) []report.ClientReport {
	var made []report.ClientReport
	kept := false
	for _, one := range reports {
		to := report.ClientReport{ClientID: one.ClientID, Watch: one.Watch}
		for _, operation := range one.KeyValue {
			request, response := operation.Input.(model.EtcdRequest), operation.Output.(model.MaybeEtcdResponse)
			if !kept && request.Type == model.Range && request.Range.Revision == 0 && response.Revision == empty && len(response.Range.KVs) == 0 {
				to.KeyValue, kept = []porcupine.Operation{operation}, true
			}
		}
		made = append(made, to)
	}
	return made
}

// Where an order of the operations comes to its end: the last ones of the longest that could be made, with dense revisions, and
// the first ones that have no place in it, with recorded revisions.
func unplaced(info porcupine.LinearizationInfo, reports []report.ClientReport) (lines []string) {
	var longest []porcupine.Operation
	for _, partition := range info.PartialLinearizationsOperations() {
		for _, partial := range partition {
			if len(partial) > len(longest) {
				longest = partial
			}
		}
	}
	placed := map[[2]int64]bool{}
	for _, one := range longest {
		placed[[2]int64{int64(one.ClientId), one.Call}] = true
	}
	var rest []porcupine.Operation
	for _, one := range reports {
		for _, operation := range one.KeyValue {
			if !placed[[2]int64{int64(operation.ClientId), operation.Call}] && operation.Output.(model.MaybeEtcdResponse).Error == "" {
				rest = append(rest, operation)
			}
		}
	}
	slices.SortFunc(rest, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	lines = append(lines, fmt.Sprintf("%d operations have an order; it ends with", len(longest)))
	for _, one := range longest[max(0, len(longest)-operationsShown):] {
		lines = append(lines, "  "+describe(one))
	}
	lines = append(lines, "the first that have no place in it, with recorded revisions:")
	for _, one := range rest[:min(len(rest), operationsShown)] {
		lines = append(lines, "  "+describe(one))
	}
	return lines
}
