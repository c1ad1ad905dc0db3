"""What studies and commands have in common: how to measure in turns, how to say what was found, how to run it all.

To read in this order:

    interleave      several arms in one run, round by round: ratios that hold on a noisy machine
    goals           one line that says whether a goal is met
    machine         where and with what something was measured
    svg, plots      plots, and a page of HTML with them
    laboratory      what a study says where `lab/` is not installed
    run_all, page   `safekeeper bench all`: runs every study, and writes a page with what they found
"""
