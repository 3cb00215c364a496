"""The race: real buyers in several processes place real orders for one scarce product.

    plan      what is raced: buyers, stock, gap, processes, and the variants of the strategies
    messages  what the processes say to one another
    buyer     one buyer: places an order, tries again when the shop is busy, keeps a trace
    worker    one process full of buyers
    pool      the worker processes as their parent sees them: started, raced, replaced, ended
    lab       the lab's own products: made, cleared, swept up after a race that was killed
    audit     what the database says afterwards, in SQL that shares nothing with the code under test
    result    the figures of one race and the verdict
    evidence  what the traces show: who read the same stock, who shared a lock
    engine    all of it together

Nothing is imported here: a worker process opens this package before Django is set up.
"""
