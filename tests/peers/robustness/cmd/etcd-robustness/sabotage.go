package main

// Distortions of a recording, each as a server could have made it by a mistake, and the check that has to find it. A check that
// finds nothing proves something only if it would have found these.

import (
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
	"go.uber.org/zap"

	"go.etcd.io/etcd/tests/v3/robustness/model"
	"go.etcd.io/etcd/tests/v3/robustness/report"
)

type distortion struct {
	name, check string
	// Whether the recording had something to distort.
	apply func(*recording) bool
}

var distortions = []distortion{
	{"drop-event", ofWatches, func(r *recording) bool {
		return r.inWatch(func(w *model.WatchOperation, at place) {
			events := &w.Responses[at.answer].Events
			*events = slices.Delete(*events, at.event, at.event+1)
		})
	}},
	{"drop-first-event", ofWatches, func(r *recording) bool {
		return r.inWatch(func(w *model.WatchOperation, _ place) {
			first := places(w)[0]
			events := &w.Responses[first.answer].Events
			*events = slices.Delete(*events, first.event, first.event+1)
		})
	}},
	{"swap-events", ofWatches, func(r *recording) bool {
		return r.inWatch(func(w *model.WatchOperation, at place) {
			all := places(w)
			next := all[slices.Index(all, at)+1]
			one, other := &w.Responses[at.answer].Events[at.event], &w.Responses[next.answer].Events[next.event]
			*one, *other = *other, *one
		})
	}},
	{"repeat-event", ofWatches, func(r *recording) bool {
		return r.inWatch(func(w *model.WatchOperation, at place) {
			w.Responses = slices.Insert(w.Responses, at.answer, w.Responses[at.answer])
		})
	}},
	{"early-progress", ofWatches, func(r *recording) bool {
		return r.inWatch(func(w *model.WatchOperation, at place) {
			answer := w.Responses[at.answer]
			early := model.WatchResponse{IsProgressNotify: true, Revision: answer.Events[0].Revision, Time: answer.Time}
			w.Responses = slices.Insert(w.Responses, at.answer, early)
		})
	}},
	{"wrong-previous-value", ofWatches, func(r *recording) bool {
		found := false
		for i := range r.reports {
			for _, watch := range r.reports[i].Watch {
				for _, at := range places(&watch) {
					event := &watch.Responses[at.answer].Events[at.event]
					if event.PrevValue != nil && !found && !slices.Contains(r.Full, r.reports[i].ClientID) {
						previous := *event.PrevValue
						previous.Version++
						event.PrevValue, found = &previous, true
					}
				}
			}
		}
		return found
	}},
	{"update-as-creation", ofWatches, func(r *recording) bool {
		return r.inWatch(func(w *model.WatchOperation, at place) {
			event := &w.Responses[at.answer].Events[at.event]
			event.IsCreate = !event.IsCreate
		})
	}},
	{"forgotten-write", ofLog, func(r *recording) bool {
		write, found := r.write(math.MaxInt64)
		for i := range r.reports {
			forget(&r.reports[i], write)
		}
		return found
	}},
	{"event-lost-in-the-log", ofLog, func(r *recording) bool {
		write, found := r.write(math.MaxInt64)
		for i := range r.reports {
			if r.reports[i].ClientID == r.Full[0] {
				forget(&r.reports[i], write)
			}
		}
		return found
	}},
	{"header-below-a-write", ofOrder, func(r *recording) bool {
		read := r.read(func(model.EtcdRequest, model.MaybeEtcdResponse) bool { return true })
		if read == nil {
			return false
		}
		write, found := r.write(read.Call)
		response := read.Output.(model.MaybeEtcdResponse)
		response.Revision = write - 1
		read.Output = response
		return found
	}},
	{"stale-read", ofOrder, func(r *recording) bool {
		old := r.read(func(_ model.EtcdRequest, response model.MaybeEtcdResponse) bool { return len(response.Range.KVs) > 0 })
		if old == nil {
			return false
		}
		request := old.Input.(model.EtcdRequest)
		for i := range r.reports {
			for j := range r.reports[i].KeyValue {
				read := &r.reports[i].KeyValue[j]
				write, found := r.write(read.Call)
				same := read.Input.(model.EtcdRequest)
				if current(read) && *same.Range == *request.Range && found && write > old.Output.(model.MaybeEtcdResponse).Revision {
					read.Output = old.Output
					return true
				}
			}
		}
		return false
	}},
	{"missing-key", ofOrder, func(r *recording) bool {
		read := r.read(func(_ model.EtcdRequest, response model.MaybeEtcdResponse) bool { return len(response.Range.KVs) > 1 })
		return read != nil && dropKey(read)
	}},
	{"old-read-lacks-a-key", ofOldReads, func(r *recording) bool {
		for i := range r.reports {
			for j := range r.reports[i].KeyValue {
				read := &r.reports[i].KeyValue[j]
				request, response := read.Input.(model.EtcdRequest), read.Output.(model.MaybeEtcdResponse)
				write, found := r.write(read.Call)
				old := request.Type == model.Range && request.Range.Revision > 0 && found && write > request.Range.Revision
				if old && response.Error == "" && len(response.Range.KVs) > 0 {
					return dropKey(read)
				}
			}
		}
		return false
	}},
}

// Judges each distortion of a recording that is sound by itself. Returns what was not found.
func (r *recording) sabotaged(names []string, limit time.Duration) (missed []string, err error) {
	nobody, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	defer nobody.Close()
	for _, name := range names {
		if !slices.ContainsFunc(distortions, func(one distortion) bool { return one.name == name }) {
			return nil, fmt.Errorf("-sabotage %s: there is no distortion of this name", name)
		}
	}
	for _, one := range distortions {
		if len(names) > 0 && !slices.Contains(names, one.name) {
			continue
		}
		distorted := r.clone()
		if !one.apply(distorted) {
			missed = append(missed, one.name+": the recording has nothing to distort")
			continue
		}
		check, how := distorted.judge(zap.NewNop(), nobody, limit).broken()
		if check != one.check {
			missed = append(missed, fmt.Sprintf("%s: to be found by %s, found by %q: %s", one.name, one.check, check, how))
		}
	}
	return missed, nil
}

// A copy whose operations may be replaced, and whose watches may be changed.
func (r *recording) clone() *recording {
	made := *r
	made.reports = nil
	for _, one := range r.reports {
		to := report.ClientReport{ClientID: one.ClientID, KeyValue: slices.Clone(one.KeyValue)}
		for _, watch := range one.Watch {
			watch.Responses = slices.Clone(watch.Responses)
			for i := range watch.Responses {
				watch.Responses[i].Events = slices.Clone(watch.Responses[i].Events)
			}
			to.Watch = append(to.Watch, watch)
		}
		made.reports = append(made.reports, to)
	}
	return &made
}

// Where an event is in a watch.
type place struct{ answer, event int }

func places(watch *model.WatchOperation) (all []place) {
	for i, answer := range watch.Responses {
		for j := range answer.Events {
			all = append(all, place{i, j})
		}
	}
	return all
}

// Changes an event in the middle of the longest watch that begins at a revision and is no full one.
func (r *recording) inWatch(change func(*model.WatchOperation, place)) bool {
	var longest *model.WatchOperation
	most := 3
	for i := range r.reports {
		if slices.Contains(r.Full, r.reports[i].ClientID) {
			continue
		}
		for j := range r.reports[i].Watch {
			watch := &r.reports[i].Watch[j]
			if events := len(places(watch)); events > most && watch.Request.Revision > 0 {
				longest, most = watch, events
			}
		}
	}
	if longest == nil {
		return false
	}
	// Two events of one revision would not change places.
	all := places(longest)
	for _, at := range all[len(all)/2 : len(all)-1] {
		next := all[slices.Index(all, at)+1]
		one, other := longest.Responses[at.answer].Events[at.event], longest.Responses[next.answer].Events[next.event]
		if at.event == 0 && one.Revision != other.Revision {
			change(longest, at)
			return true
		}
	}
	return false
}

// The highest revision of a write that was acknowledged before a time.
func (r *recording) write(before int64) (revision int64, found bool) {
	for _, one := range r.reports {
		for _, operation := range one.KeyValue {
			at := operation.Output.(model.MaybeEtcdResponse).Revision
			if operation.Return < before && at > revision && len(effects(operation)) > 0 {
				revision, found = at, true
			}
		}
	}
	return revision, found
}

// A read of the current state: the earliest fit one with a write before it.
func (r *recording) read(fit func(model.EtcdRequest, model.MaybeEtcdResponse) bool) (earliest *porcupine.Operation) {
	for i := range r.reports {
		for j := range r.reports[i].KeyValue {
			one := &r.reports[i].KeyValue[j]
			if !current(one) || !fit(one.Input.(model.EtcdRequest), one.Output.(model.MaybeEtcdResponse)) {
				continue
			}
			if _, found := r.write(one.Call); found && (earliest == nil || one.Call < earliest.Call) {
				earliest = one
			}
		}
	}
	return earliest
}

func current(operation *porcupine.Operation) bool {
	request, response := operation.Input.(model.EtcdRequest), operation.Output.(model.MaybeEtcdResponse)
	return request.Type == model.Range && request.Range.Revision == 0 && response.Error == "" && response.Range != nil
}

func dropKey(read *porcupine.Operation) bool {
	response := read.Output.(model.MaybeEtcdResponse)
	made := *response.Range
	made.KVs = slices.Clone(made.KVs[1:])
	made.Count--
	response.Range = &made
	read.Output = response
	return true
}

// Takes all events of a revision out of what a client was sent.
func forget(one *report.ClientReport, revision int64) {
	for i := range one.Watch {
		for j := range one.Watch[i].Responses {
			events := &one.Watch[i].Responses[j].Events
			*events = slices.DeleteFunc(*events, func(event model.WatchEvent) bool { return event.Revision == revision })
		}
	}
}
