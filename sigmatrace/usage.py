"""The text of ``--help``; apart, so that showing it imports nothing else."""

TEXT = """\
sigmatrace-pipeline: correlates the trace files of a run and exports them.

  sigmatrace-pipeline run=DIR [OPTION=VALUE ...]

Options
  run=DIR              folder of the trace files (+run=DIR is the same)
  out=DIR              where the output goes                  default: RUN/sigmatrace-out
  export=NAME          perfetto, report, json, parquet, csv, matrix    default: perfetto
                       several: export=[perfetto,json]
  stage=[NAME,...]     clock, topology, one_sided, completion, wqe, doorbell, match, traffic
                       (default); messages (one row per message)
  stage.clock.method=  auto: hosts' clocks are corrected by messages where these show that they
                       disagree (default); messages: always; calibration: never
  cluster=NAME         threads, processes, distributed        default: threads
                       cluster.workers=N; distributed: cluster.address=tcp://HOST:PORT
                       jobs: slurm, pbs, moab, lsf, sge, oar, htcondor; cluster.jobs=N ...
  preset=NAME          summary (json, csv), everything (all exporters), analysis (who waited
                       for whom, what is uneven: json, parquet)
  overwrite=true       replace an output that is already there
  resume=own           go on where a killed run of this host was (default); any: also where one
                       of another host was, which must not be alive any more; none: begin anew
  strict=true          any lost or damaged data, or a file without an end, is an error
  window=BEGIN..END    read this time alone, as in 10s..12.5s after the run's zero
  export.perfetto.X=   what the time line shows: window, ranks, qps, ops, budget_mb, split
  validate.pcap=FILE   compare layer verbs with a packet capture of RoCEv2
  run_id=ID            which run to read, when files of several lie in the folder
  partition_mb=N       event bytes of a partition, MiB        default: 12

Flags
  --plan               print the stages in order and the passes over the data; compute nothing
  --multirun           one run for each of run=A,B,...
  --config-dir DIR     a folder with stages, exporters and presets of your own
  --cfg job            print the configuration
  --debug              show tracebacks
  --version, --help

Exit codes: 0 done, 1 own bug, 2 option, 3 no run, 4 unknown version, 5 several runs mixed,
6 output, 7 stages do not fit or one of yours failed, 8 data lost and strict=true, 10 workers or
scheduler of the cluster went away or did not come, 130 interrupted, 143 terminated
"""
