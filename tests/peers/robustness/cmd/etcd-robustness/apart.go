package main

// Routers that know nothing of each other. A router answers about a Kind on several stores at or above what it has itself shown
// (R8 of docs/design.md). What was answered through another router a moment ago it may answer below: two stores have two clocks.
// etcd never does that. With `-apart` only this is forgiven, and counted: an answer at R counts as asked for before the first
// answer above R came through another router. What it says must still be what was there at R, and everything else still holds.

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/anishathalye/porcupine"

	"go.etcd.io/etcd/tests/v3/robustness/model"
	"go.etcd.io/etcd/tests/v3/robustness/report"
)

// Moves the beginnings of answers that are below an earlier one through another router, in reports with dense revisions. Returns
// how many there are. Headers say which router has answered (its id as a member): one must never be below itself.
func forgive(reports []report.ClientReport) (moved int) {
	// When the first answer with a revision came from a router.
	came := map[model.MemberID]map[int64]int64{}
	for _, one := range reports {
		for _, operation := range one.KeyValue {
			if revision, known := answered(operation.Output); known {
				by := came[member(operation.Output)]
				if by == nil {
					by = map[int64]int64{}
					came[member(operation.Output)] = by
				}
				if first, found := by[revision]; !found || operation.Return < first {
					by[revision] = operation.Return
				}
			}
		}
	}
	above := map[model.MemberID]firsts{}
	for router, by := range came {
		above[router] = firstsAbove(by)
	}
	stream := streams(reports)
	for i := range reports {
		for j := range reports[i].KeyValue {
			operation := &reports[i].KeyValue[j]
			revision, known := answered(operation.Output)
			if !known || above[member(operation.Output)].at(revision) <= operation.Call {
				continue
			}
			first := int64(math.MaxInt64)
			for _, one := range above {
				first = min(first, one.at(revision))
			}
			if first <= operation.Call {
				// Streams have one operation at a time.
				operation.Call, operation.ClientId = first-1, stream+moved
				moved++
			}
		}
	}
	return moved
}

// When the first answer came that has a revision or a higher one, by the revisions of answers.
type firsts struct {
	revisions, came []int64
}

func firstsAbove(came map[int64]int64) firsts {
	made := firsts{revisions: slices.Sorted(maps.Keys(came))}
	made.came = make([]int64, len(made.revisions))
	first := int64(math.MaxInt64)
	for i, revision := range slices.Backward(made.revisions) {
		first = min(first, came[revision])
		made.came[i] = first
	}
	return made
}

// When the first answer above a revision came.
func (f firsts) at(revision int64) int64 {
	i, found := slices.BinarySearch(f.revisions, revision)
	if found {
		i++
	}
	if i == len(f.came) {
		return math.MaxInt64
	}
	return f.came[i]
}

func member(output any) model.MemberID {
	return output.(model.MaybeEtcdResponse).MemberID
}

// The answers, of those with recorded revisions, that are below a write which was acknowledged before they were asked for.
func below(reports []report.ClientReport) (lines []string) {
	var all, writes []porcupine.Operation
	for _, one := range reports {
		for _, operation := range one.KeyValue {
			if _, known := answered(operation.Output); known {
				all = append(all, operation)
			}
			if len(effects(operation)) > 0 {
				writes = append(writes, operation)
			}
		}
	}
	slices.SortFunc(all, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	for _, operation := range all {
		revision, _ := answered(operation.Output)
		for _, write := range writes {
			if at, _ := answered(write.Output); at > revision && write.Return < operation.Call {
				lines = append(lines, fmt.Sprintf("  %s\n    after %s", describe(operation), describe(write)))
				break
			}
		}
	}
	return lines
}

func answered(output any) (revision int64, known bool) {
	response := output.(model.MaybeEtcdResponse)
	return response.Revision, response.Error == "" && response.ClientError == "" && !response.Persisted && response.Revision > 0
}

// The number of streams of all clients.
func streams(reports []report.ClientReport) (highest int) {
	for _, one := range reports {
		for _, operation := range one.KeyValue {
			highest = max(highest, operation.ClientId+1)
		}
	}
	return highest
}
