package main

// Routers that know nothing of each other. A router answers about a Kind on several stores at or above what it has itself shown
// (R8 of docs/design.md). What was answered through another router a moment ago it may answer below: two stores have two clocks.
// etcd never does that. With `-apart` only this is forgiven, and counted: an answer at R counts as asked for before the
// first answer above R came. What it says must still be what was there at R, and everything else still holds.

import (
	"fmt"
	"math"
	"slices"

	"github.com/anishathalye/porcupine"

	"go.etcd.io/etcd/tests/v3/robustness/model"
	"go.etcd.io/etcd/tests/v3/robustness/report"
)

// Moves the beginnings of answers that are below an earlier one, in reports with dense revisions. Returns how many there are.
func forgive(reports []report.ClientReport) (moved int) {
	stream := streams(reports)
	// The first time that an answer above a revision came.
	above := map[int64]int64{}
	var shown []int64
	for _, one := range reports {
		for _, operation := range one.KeyValue {
			revision, known := answered(operation.Output)
			if first, found := above[revision]; known && (!found || operation.Return < first) {
				above[revision] = operation.Return
			}
		}
	}
	for revision := range above {
		shown = append(shown, revision)
	}
	slices.Sort(shown)
	first := int64(math.MaxInt64)
	for _, revision := range slices.Backward(shown) {
		first, above[revision] = min(first, above[revision]), first
	}
	for i := range reports {
		for j := range reports[i].KeyValue {
			operation := &reports[i].KeyValue[j]
			revision, known := answered(operation.Output)
			if limit := above[revision]; known && operation.Call >= limit {
				// Streams have one operation at a time.
				operation.Call, operation.ClientId = limit-1, stream+moved
				moved++
			}
		}
	}
	return moved
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
