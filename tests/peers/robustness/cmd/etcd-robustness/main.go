//go:debug randseednop=0

// etcd's own robustness checkers over one or more endpoints: the traffic, the model and the validators of its tests
// (go.etcd.io/etcd/tests/v3/robustness), as a library. Where revisions are times, they are replaced by dense ones first:
// dense.go says how, and why that hides nothing.
//
// Clients write, read, list and watch for some seconds, half of them pinned to an endpoint and half of them over all in turn.
// Then everything is judged: the order of the operations by etcd's model and porcupine, the watches by etcd's guarantees, and
// reads at former revisions by a replay of all writes.
//
// It ends with 0 if all holds, with 1 and etcd's report in the folder `-report` if not, and with 2 if nothing can be judged, as when
// no order of the operations was found in time and none was excluded. The last line on standard output says how much there was. `-sabotage all` distorts what was recorded, in one way after the other,
// and ends with 1 if one is not found. `-replay` judges a report once more.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/tests/v3/robustness/model"
	"go.etcd.io/etcd/tests/v3/robustness/report"
	"go.etcd.io/etcd/tests/v3/robustness/traffic"
)

type options struct {
	endpoints                  []string
	traffic                    string
	duration, compact, limit   time.Duration
	clients, roaming, watchers int
	writes                     int
	rate                       float64
	seed                       int64
	leaseRevisions, apart      bool
	report, replay, sabotage   string
}

// Beside etcd's report: what it has no place for.
const about = "recording.json"

var errNotSound = errors.New("not sound")

func main() {
	o, err := parsed(os.Args[1:])
	if err == nil {
		err = run(o)
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errNotSound):
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

func parsed(arguments []string) (options, error) {
	var o options
	var endpoints string
	flags := flag.NewFlagSet("etcd-robustness", flag.ContinueOnError)
	flags.StringVar(&endpoints, "endpoints", "", "servers of one cluster without keys, as host:port, comma-separated")
	flags.StringVar(&o.traffic, "traffic", "kubernetes", "kubernetes, kubernetes-create-delete, etcd-put, etcd-put-delete-lease or etcd-delete")
	flags.DurationVar(&o.duration, "duration", 5*time.Second, "how long the clients work")
	flags.IntVar(&o.writes, "writes", 150, "how many writes there must be: a slow machine works longer")
	flags.IntVar(&o.clients, "clients", 6, "clients that write and read through one endpoint, each through the next")
	flags.IntVar(&o.roaming, "roaming", 2, "as many more that write and read, and that watch, through all endpoints in turn")
	flags.IntVar(&o.watchers, "watchers", 6, "clients that watch through one endpoint")
	flags.Float64Var(&o.rate, "rate", 200, "requests a second, of all clients")
	flags.DurationVar(&traffic.RequestTimeout, "request-timeout", 2*time.Second, "when a client gives up. What it asked for may still be done, which makes judging slow")
	flags.DurationVar(&o.compact, "compact", 0, "how often to compact; 0: never")
	flags.Int64Var(&o.seed, "seed", 1, "of the clients' choices; their order in time is not repeated")
	flags.BoolVar(&o.leaseRevisions, "lease-revisions", true, "whether answers about leases have a revision that compares with those of keys")
	flags.BoolVar(&o.apart, "apart", false, "whether an answer may have a lower revision than an earlier one through another endpoint (apart.go)")
	flags.DurationVar(&o.limit, "limit", time.Minute, "how long to look for an order of the operations")
	flags.StringVar(&o.report, "report", "", "folder for etcd's report of a violation")
	flags.StringVar(&o.replay, "replay", "", "a folder that -report named: judge what is recorded there")
	flags.StringVar(&o.sabotage, "sabotage", "", "all, or names of distortions with commas between: judge what was recorded and each distortion of it")
	if err := flags.Parse(arguments); err != nil {
		return o, err
	}
	o.endpoints = strings.FieldsFunc(endpoints, func(r rune) bool { return r == ',' })
	if _, found := traffics[o.traffic]; !found {
		return o, fmt.Errorf("-traffic %s: there is none of this name", o.traffic)
	}
	if len(o.endpoints) == 0 && o.replay == "" {
		return o, errors.New("name the servers by -endpoints, or a recording by -replay")
	}
	return o, nil
}

func run(o options) error {
	made, err := recorded(o)
	if err != nil {
		return err
	}
	lg := zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(zap.NewDevelopmentEncoderConfig()), zapcore.Lock(os.Stderr), zap.WarnLevel))
	v := made.judge(lg, os.Stderr, o.limit)
	failures := made.failures()
	line := fmt.Sprintf("robustness traffic=%s seed=%d %s", made.Traffic, made.Seed, made.counts(v, len(failures)))
	if len(failures) > 0 {
		fmt.Fprintf(os.Stderr, "requests that failed, the first of %d:\n%s\n", len(failures), strings.Join(failures[:min(len(failures), findingsShown)], "\n"))
	}
	check, how := v.broken()
	if check != "" {
		fmt.Printf("%s violation=%s\n", line, check)
		err := made.complain(lg, o, v, check, how)
		if check == undecided {
			return err
		}
		return fmt.Errorf("%w: %w", errNotSound, err)
	}
	if o.sabotage != "" {
		var names []string
		if o.sabotage != "all" {
			names = strings.Split(o.sabotage, ",")
		}
		missed, err := made.sabotaged(names, o.limit)
		if err != nil {
			return err
		}
		if len(missed) > 0 {
			fmt.Printf("%s violation=sabotage\n", line)
			return fmt.Errorf("%w: distortions that were not found:\n%s", errNotSound, strings.Join(missed, "\n"))
		}
		line += " sabotage=found"
	}
	fmt.Printf("%s violation=none\n", line)
	return nil
}

func recorded(o options) (*recording, error) {
	if o.replay == "" {
		rand.Seed(o.seed)
		return record(o)
	}
	made := &recording{}
	text, err := os.ReadFile(filepath.Join(o.replay, about))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, made); err != nil {
		return nil, fmt.Errorf("%s: %w", about, err)
	}
	made.Apart = made.Apart || o.apart
	made.reports, err = report.LoadClientReports(o.replay)
	return made, err
}

func (r *recording) counts(v verdict, failed int) string {
	var operations, watches, events int
	for _, one := range r.reports {
		operations += len(one.KeyValue)
		watches += len(one.Watch)
		events += one.WatchEventCount()
	}
	return fmt.Sprintf("operations=%d failed=%d revisions=%d watches=%d events=%d apart=%d seconds=%.1f", operations, failed, v.revisions, watches, events, v.apart, r.Seconds)
}

func (r *recording) failures() (lines []string) {
	for _, one := range r.reports {
		for _, operation := range one.KeyValue {
			// The traffic asks for the empty key when it knows no other, which an etcd refuses as well.
			if err := operation.Output.(model.MaybeEtcdResponse).Error; err != "" && err != rpctypes.ErrEmptyKey.Error() {
				lines = append(lines, describe(operation))
			}
		}
	}
	return lines
}

// Says what is wrong, and writes everything that shows it.
func (r *recording) complain(lg *zap.Logger, o options, v verdict, check, how string) error {
	lines := []string{fmt.Sprintf("%s: %s", check, how)}
	if check == undecided {
		lines = append(lines, "try a longer -limit, or a lower -rate")
	}
	lines = append(lines, v.findings[:min(len(v.findings), findingsShown)]...)
	if err := v.result.Watch.Error(); err != nil && check != ofWatches {
		lines = append(lines, "watches: "+err.Error())
	}
	info := v.result.Linearization.Info
	if check == ofOrder {
		lines = append(lines, unplaced(info, r.reports)...)
		low := below(r.reports)
		lines = append(lines, fmt.Sprintf("%d answers have a revision below that of a write acknowledged before they were asked for:", len(low)))
		lines = append(lines, low[:min(len(low), findingsShown)]...)
	}
	if o.report != "" {
		folder, err := filepath.Abs(filepath.Join(o.report, "report"))
		if err == nil {
			err = r.save(lg, folder)
		}
		if err == nil && check == ofOrder && v.result.Linearization.Model.Step != nil {
			err = porcupine.VisualizePath(v.result.Linearization.Model, info, filepath.Join(folder, "history.html"))
		}
		lines = append(lines, fmt.Sprintf("etcd's report is in %s; to judge it again: etcd-robustness -replay %s", folder, folder))
		if err != nil {
			lines = append(lines, fmt.Sprintf("it is not complete: %v", err))
		}
	}
	return errors.New(strings.Join(lines, "\n"))
}

func (r *recording) save(lg *zap.Logger, folder string) error {
	if _, err := os.Stat(folder); err == nil {
		return fmt.Errorf("%s exists: name another folder by -report", folder)
	}
	made, err := report.NewTestReport(lg, folder, nil, &report.TrafficDetail{ExpectUniqueRevision: r.Unique})
	if err != nil {
		return err
	}
	made.SetClientReports(r.reports)
	if err := made.SaveEtcdData(); err != nil {
		return err
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, about), text, 0o600)
}
